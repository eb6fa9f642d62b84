"""The bus: who hears what, and that no handler can do harm."""

import logging
import threading

import pytest

from tinkex import telemetry
from tinkex.errors import ValidationError
from tinkex.telemetry import Bus, events


def recorder(seen):
    def fn(event, measurements, metadata, config):
        seen.append((event, measurements, metadata, config))

    return fn


def failing(event, measurements, metadata, config):
    raise RuntimeError("handler is broken")


def test_handler_gets_event_measurements_metadata_and_its_config():
    bus, seen = Bus(), []
    bus.attach("h", "tinkex.http.request.stop", recorder(seen), {"mine": 1})
    bus.execute("tinkex.http.request.stop", {"duration": 0.5}, {"path": "/x"})
    assert seen == [("tinkex.http.request.stop", {"duration": 0.5}, {"path": "/x"}, {"mine": 1})]


def test_a_handler_gets_only_its_event():
    bus, seen = Bus(), []
    bus.attach("h", "tinkex.http.request.stop", recorder(seen))
    bus.execute("tinkex.http.request.start", {}, {})
    bus.execute("tinkex.http.request.stop.more", {}, {})
    assert seen == []


@pytest.mark.parametrize(
    ("pattern", "event", "heard"),
    [
        ("tinkex.http.*", "tinkex.http.request.stop", True),
        ("tinkex.http.*", "tinkex.httpx.request", False),
        ("tinkex.http.*", "tinkex.http", False),
        ("*", "anything.at.all", True),
        ("tinkex.*", "tinkex.queue.state_change", True),
    ],
)
def test_wildcard_means_a_prefix_of_whole_parts(pattern, event, heard):
    bus, seen = Bus(), []
    bus.attach("h", pattern, recorder(seen))
    bus.execute(event, {}, {})
    assert bool(seen) is heard
    assert bus.has_handlers(event) is heard


@pytest.mark.parametrize("event", ["", "a..b", "tinkex.*.stop", "tinkex.ht*", ".", " ", None, 3])
def test_malformed_event_names_are_refused(event):
    with pytest.raises(ValidationError, match="not the name of an event"):
        Bus().attach("h", event, print)


def test_attach_many_gets_each_event_once():
    bus, seen = Bus(), []
    bus.attach_many("h", ["tinkex.a", "tinkex.*", "tinkex.b"], recorder(seen))
    bus.execute("tinkex.a", {}, {})
    bus.execute("tinkex.b", {}, {})
    assert [each[0] for each in seen] == ["tinkex.a", "tinkex.b"]


def test_attach_many_takes_one_name_as_one_name():
    bus, seen = Bus(), []
    bus.attach_many("h", "tinkex.a", recorder(seen))
    bus.execute("tinkex.a", {}, {})
    assert len(seen) == 1


def test_same_id_again_replaces_the_handler():
    bus, old, new = Bus(), [], []
    bus.attach("h", "tinkex.a", recorder(old))
    bus.attach("h", "tinkex.a", recorder(new))
    bus.execute("tinkex.a", {}, {})
    assert (len(old), len(new)) == (0, 1)


def test_detach_says_whether_there_was_one():
    bus, seen = Bus(), []
    bus.attach("h", "tinkex.a", recorder(seen))
    assert bus.detach("h") is True
    assert bus.detach("h") is False
    bus.execute("tinkex.a", {}, {})
    assert seen == []
    assert not bus.has_handlers("tinkex.a")


def test_failing_handler_is_detached_reported_once_and_never_felt(caplog):
    bus, seen = Bus(), []
    bus.attach("bad", "tinkex.*", failing)
    bus.attach("good", "tinkex.*", recorder(seen))
    with caplog.at_level(logging.ERROR, logger="tinkex.telemetry"):
        bus.execute("tinkex.a", {}, {})
        bus.execute("tinkex.b", {}, {})
    assert [each[0] for each in seen] == ["tinkex.a", "tinkex.b"]
    assert len(caplog.records) == 1
    assert "'bad'" in caplog.text
    assert "handler is broken" in caplog.text
    assert not bus.detach("bad")


def test_failure_of_a_replaced_handler_leaves_its_successor_attached(caplog):
    bus, seen = Bus(), []

    def replaces_itself_then_fails(event, measurements, metadata, config):
        bus.attach("h", "tinkex.a", recorder(seen))
        raise RuntimeError("too late")

    bus.attach("h", "tinkex.a", replaces_itself_then_fails)
    with caplog.at_level(logging.ERROR, logger="tinkex.telemetry"):
        bus.execute("tinkex.a", {}, {})
    bus.execute("tinkex.a", {}, {})
    assert len(seen) == 1
    assert caplog.records == []


def test_keyboard_interrupt_in_a_handler_is_not_swallowed():
    bus = Bus()

    def interrupted(event, measurements, metadata, config):
        raise KeyboardInterrupt

    bus.attach("h", "tinkex.a", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bus.execute("tinkex.a", {}, {})


def test_handler_may_detach_itself_and_attach_others_while_called():
    bus, seen = Bus(), []

    def once(event, measurements, metadata, config):
        bus.detach("once")
        bus.attach("next", "tinkex.a", recorder(seen))

    bus.attach("once", "tinkex.a", once)
    bus.execute("tinkex.a", {}, {})
    assert seen == []
    bus.execute("tinkex.a", {}, {})
    assert len(seen) == 1


def test_handlers_do_not_share_the_dicts_they_are_given():
    bus, seen, metadata = Bus(), [], {"path": "/x"}

    def vandal(event, measurements, about, config):
        about.clear()

    bus.attach("vandal", "tinkex.a", vandal)
    bus.attach("h", "tinkex.a", recorder(seen))
    bus.execute("tinkex.a", {}, metadata)
    assert seen[0][2] == {"path": "/x"}
    assert metadata == {"path": "/x"}


def test_without_listeners_nothing_is_read_from_the_metadata():
    class Untouchable(dict):
        def items(self):
            raise AssertionError("measurements are read although nothing listens")

        __iter__ = items

    bus = Bus()
    bus.execute("tinkex.a", Untouchable(), Untouchable())
    bus.attach("h", "tinkex.other", print)
    bus.execute("tinkex.a", Untouchable(), Untouchable())


def test_concurrent_execute_attach_and_detach_lose_nothing():
    bus, counted, lock = Bus(), [0], threading.Lock()

    def count(event, measurements, metadata, config):
        with lock:
            counted[0] += 1

    def emit():
        for _ in range(200):
            bus.execute("tinkex.a", {}, {})

    def churn(name):
        for _ in range(200):
            bus.attach(name, "tinkex.a", lambda *_: None)
            bus.detach(name)

    bus.attach("count", "tinkex.a", count)
    threads = [threading.Thread(target=emit) for _ in range(4)]
    threads += [threading.Thread(target=churn, args=(f"churn-{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counted == [800]
    assert bus.detach("count")
    assert not bus.has_handlers("tinkex.a")


def test_module_functions_speak_to_the_default_bus():
    seen = []
    telemetry.attach("test-default", "tinkex.test.event", recorder(seen), "c")
    try:
        assert telemetry.has_handlers("tinkex.test.event")
        assert telemetry.default_bus().has_handlers("tinkex.test.event")
        telemetry.execute("tinkex.test.event", {"n": 1}, {})
    finally:
        assert telemetry.detach("test-default")
    telemetry.attach_many("test-default", ["tinkex.test.a", "tinkex.test.b"], recorder(seen))
    telemetry.execute("tinkex.test.b", {}, {})
    telemetry.detach("test-default")
    telemetry.execute("tinkex.test.b", {}, {})
    assert [each[0] for each in seen] == ["tinkex.test.event", "tinkex.test.b"]


def test_all_events_are_distinct_and_listed():
    named = {value for name, value in vars(events).items() if name.isupper() and name != "ALL"}
    assert named == set(events.ALL)
    assert len(events.ALL) == len(set(events.ALL))
    assert all(name.startswith("tinkex.") for name in events.ALL)
