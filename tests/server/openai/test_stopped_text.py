"""Stops in text that comes in pieces: never given out, and never more held back than may be one."""

from __future__ import annotations

import random

from tinkex.server.openai.answer_text import StoppedText


def test_pieces_give_what_the_whole_gives() -> None:
    rng = random.Random(1)
    for _ in range(2000):
        rest = "".join(rng.choice("ab") for _ in range(rng.randrange(30)))
        stops = ["".join(rng.choice("ab") for _ in range(rng.randrange(2, 5))) for _ in range(2)]
        text, given, whole = StoppedText(stops), "", ""
        while rest and not any(stop in whole for stop in stops):  # the sampler ends there
            size = rng.randrange(1, 4)
            given += text.add(rest[:size])
            whole, rest = whole + rest[:size], rest[size:]
        given += text.add("", is_last=True)
        ends = [place for stop in stops if (place := whole.find(stop)) >= 0]
        assert given == (whole[: min(ends)] if ends else whole)


def test_only_what_may_be_a_stop_is_held_back() -> None:
    text = StoppedText(["</end>"])
    assert text.add("a<") == "a"
    assert text.add("b") == "<b"
    assert text.add("c</en") == "c"
    assert text.add("x") == "</enx"
    assert text.add("e</end>f") == "e"
    assert text.add("g") == ""
    assert text.add("", is_last=True) == ""
    assert StoppedText([]).add("a<") == "a<"
    unfinished = StoppedText(["</end>"])
    assert unfinished.add("a</e") == "a"
    assert unfinished.add("", is_last=True) == "</e"
