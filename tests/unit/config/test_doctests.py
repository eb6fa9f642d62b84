"""The examples in the docstrings are true."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    "name",
    [
        "tinkex.setting_parsers",
        "tinkex.telemetry.bus",
        "tinkex.telemetry.logger",
        "tinkex.telemetry.metrics",
        "tinkex.telemetry.redaction",
        "tinkex.tokenizers.folder",
        "tinkex.tokenizers.chat_template",
    ],
)
def test_examples(name):
    failed, attempted = doctest.testmod(importlib.import_module(name))
    assert failed == 0
    assert attempted > 0
