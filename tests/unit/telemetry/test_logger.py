"""Events as log lines."""

import logging

import pytest

from tinkex.errors import ValidationError
from tinkex.telemetry import Bus, attach_logger
from tinkex.telemetry.logger import format_line


def test_one_line_per_event_at_the_requested_level(caplog):
    bus = Bus()
    attach_logger("warning", bus=bus)
    with caplog.at_level(logging.DEBUG, logger="tinkex.events"):
        bus.execute("tinkex.http.request.stop", {"duration": 0.25}, {"method": "GET", "path": "/x"})
        bus.execute("elsewhere.event", {}, {})
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("WARNING", "tinkex.http.request.stop duration=0.25 method=GET path=/x")
    ]


def test_below_the_logger_level_nothing_is_formatted(caplog):
    bus = Bus()

    class Unprintable:
        def __str__(self):
            raise AssertionError("formatted although nothing listens")

    attach_logger(logging.DEBUG, bus=bus)
    with caplog.at_level(logging.INFO, logger="tinkex.events"):
        bus.execute("tinkex.a", {}, {"value": Unprintable()})
    assert caplog.records == []
    assert bus.has_handlers("tinkex.a")


def test_returned_id_detaches_and_two_loggers_can_live_together(caplog):
    bus, own = Bus(), logging.getLogger("tests.own")
    first = attach_logger(bus=bus)
    second = attach_logger(bus=bus, handler_id="own", logger=own, events=["tinkex.a"])
    with caplog.at_level(logging.INFO):
        bus.execute("tinkex.a", {}, {})
        bus.detach(first)
        bus.execute("tinkex.a", {}, {})
    assert second == "own"
    assert [r.name for r in caplog.records] == ["tinkex.events", "tests.own", "tests.own"]


def test_values_with_blanks_or_line_breaks_stay_on_one_line():
    line = format_line(
        "e", {"n": 1}, {"a": "two words", "b": "x\ny", "c": "", "d": None, "e": True}
    )
    assert line == "e n=1 a='two words' b='x\\ny' c='' e=True"


def test_long_values_are_cut():
    line = format_line("e", {}, {"body": "x" * 10_000})
    assert len(line) < 600
    assert line.endswith("…")


@pytest.mark.parametrize("level", ["loud", "", "NOTSET"])
def test_unknown_level_is_refused(level):
    with pytest.raises(ValidationError, match="not a log level"):
        attach_logger(level, bus=Bus())
