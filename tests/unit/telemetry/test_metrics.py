"""Metrics added up from events."""

import math
import threading

import pytest

from tinkex.telemetry import Bus, Metrics

STOP = "tinkex.http.request.stop"


def test_counts_events_and_results():
    bus = Bus()
    with Metrics(bus=bus) as metrics:
        bus.execute(STOP, {"duration": 1}, {"result": "ok"})
        bus.execute(STOP, {"duration": 1}, {"result": "ok"})
        bus.execute(STOP, {"duration": 1}, {"result": "error"})
    assert metrics.snapshot().counters == {STOP: 3, f"{STOP}.ok": 2, f"{STOP}.error": 1}


def test_percentiles_are_of_the_observed_values():
    metrics = Metrics(bus=Bus())
    for value in range(100, 0, -1):
        metrics.observe("d", value)
    histogram = metrics.snapshot().histograms["d"]
    assert (histogram.p50, histogram.p95, histogram.p99) == (50, 95, 99)
    assert (histogram.count, histogram.min, histogram.max, histogram.mean) == (100, 1, 100, 50.5)


def test_one_value_is_every_percentile():
    metrics = Metrics(bus=Bus())
    metrics.observe("d", 0.25)
    histogram = metrics.snapshot().histograms["d"]
    assert (histogram.p50, histogram.p95, histogram.p99, histogram.total) == (0.25,) * 4


def test_durations_become_histograms_and_other_numbers_gauges():
    bus = Bus()
    with Metrics(bus=bus) as metrics:
        bus.execute("tinkex.future.timeout", {"elapsed_time": 3.0}, {})
        bus.execute("tinkex.custom_loss.stop", {"duration": 1.0, "loss_total": 7.5}, {})
        bus.execute("tinkex.custom_loss.stop", {"duration": 1.0, "loss_total": 6.5}, {})
        bus.execute(
            "tinkex.http.request.start", {"system_time": 1.7e9, "odd": "text", "f": True}, {}
        )
    snapshot = metrics.snapshot()
    assert snapshot.histograms["tinkex.future.timeout"].max == 3.0
    assert snapshot.gauges == {"tinkex.custom_loss.stop.loss_total": 6.5}


def test_detached_metrics_keep_what_they_have_and_count_no_more():
    bus = Bus()
    metrics = Metrics(bus=bus).attach().attach()
    bus.execute("tinkex.a", {}, {})
    metrics.detach()
    bus.execute("tinkex.a", {}, {})
    assert metrics.snapshot().counters == {"tinkex.a": 1}


def test_two_metrics_on_one_bus_do_not_disturb_each_other():
    bus = Bus()
    with Metrics(bus=bus) as outer:
        with Metrics(bus=bus) as inner:
            bus.execute("tinkex.a", {}, {})
        bus.execute("tinkex.a", {}, {})
    assert outer.snapshot().counters == {"tinkex.a": 2}
    assert inner.snapshot().counters == {"tinkex.a": 1}


def test_detaches_when_the_block_fails():
    bus = Bus()
    with pytest.raises(ZeroDivisionError), Metrics(bus=bus):
        raise ZeroDivisionError
    assert not bus.has_handlers("tinkex.a")


def test_series_are_bounded_and_what_is_left_out_is_counted():
    metrics = Metrics(bus=Bus(), max_series=3)
    for number in range(10):
        metrics.increment(f"name-{number}")
    metrics.observe("late", 1.0)
    metrics.gauge("late", 1.0)
    metrics.increment("name-0")
    snapshot = metrics.snapshot()
    assert snapshot.counters == {"name-0": 2, "name-1": 1, "name-2": 1}
    assert snapshot.histograms == {}
    assert snapshot.gauges == {}
    assert snapshot.dropped_updates == 9


def test_recent_values_are_bounded_but_totals_are_of_all():
    metrics = Metrics(bus=Bus(), max_recent=10)
    for value in range(1000):
        metrics.observe("d", value)
    histogram = metrics.snapshot().histograms["d"]
    assert (histogram.count, histogram.min, histogram.max) == (1000, 0, 999)
    assert histogram.p50 == 994


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_left_out(value):
    metrics = Metrics(bus=Bus())
    metrics.observe("d", value)
    assert metrics.snapshot().histograms == {}


def test_snapshot_does_not_change_and_reset_forgets():
    metrics = Metrics(bus=Bus())
    metrics.increment("a", 5)
    before = metrics.snapshot()
    metrics.increment("a")
    metrics.reset()
    assert before.counters == {"a": 5}
    assert metrics.snapshot().counters == {}


def test_counts_from_many_threads():
    bus = Bus()
    with Metrics(bus=bus) as metrics:
        threads = [
            threading.Thread(
                target=lambda: [bus.execute(STOP, {"duration": 1.0}, {}) for _ in range(250)]
            )
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert metrics.snapshot().counters[STOP] == 1000
    assert metrics.snapshot().histograms[STOP].count == 1000
