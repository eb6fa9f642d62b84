"""Which graphs are refused before any of them runs."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.custom_loss.graphs import (
    INPUT,
    PLACEHOLDER,
    function,
    loss_of,
    method,
    output,
    ref,
)
from tinkex.engine.custom_loss.bounds import MAX_NODES
from tinkex.engine.custom_loss.checks import check_loss
from tinkex.engine.custom_loss.declaration import UploadedLoss, encode_loss, read_loss
from tinkex.engine.custom_loss.operations import FUNCTIONS, METHODS
from tinkex.engine.errors import EngineUserError
from tinkex.types.custom_loss import CustomLossGraph, CustomLossInput, CustomLossNode

SUM = method("s", "sum", ref("lp"))


def graph(*nodes: CustomLossNode, inputs: tuple[CustomLossInput, ...] = (INPUT,)) -> UploadedLoss:
    return UploadedLoss(inputs, CustomLossGraph(nodes=list(nodes)))


def refusal(loss: UploadedLoss) -> str:
    with pytest.raises(EngineUserError) as refused:
        check_loss(loss)
    assert refused.value.code == "bad-custom-loss"
    return str(refused.value)


def test_a_plain_loss_passes_and_comes_back_from_its_bytes() -> None:
    loss = loss_of(SUM)
    checked = check_loss(loss)
    assert [step.target for step in checked.steps] == ["sum"]
    assert read_loss(encode_loss(loss)) == loss
    with pytest.raises(EngineUserError, match="cannot be read"):
        read_loss(b"{}")


@pytest.mark.parametrize(
    "node",
    [
        function("x", "os.system", "id"),
        function("x", "torch.load", "mean"),
        function("x", "torch.save", ref("lp")),
        function("x", "torch.rand", 3),
        function("x", "torch.nn.functional.dropout", ref("lp")),
        function("x", "builtins.eval", "mean"),
        function("x", "eval"),
        function("x", "getattr", ref("lp"), "__class__"),
        function("x", "getattr", ref("lp"), "grad_fn"),
        function("x", "getattr", ref("lp")),
        function("x", "getattr", "mean", "shape"),
        function("x", "getattr", ref("lp"), ["shape"]),
        function("x", "operator.setitem", ref("lp"), 0, 1),
        function("x", "operator.iadd", ref("lp"), 1),
        function("x", "operator.attrgetter", "mean"),
        function("x", "operator.methodcaller", "mean"),
        function("x", "torch.take_along_dim", ref("lp"), 9),
        method("x", "add_", ref("lp"), 1),
        method("x", "__reduce__", ref("lp")),
        method("x", "backward", ref("lp")),
        method("x", "register_hook", ref("lp")),
        method("x", "tolist", ref("lp")),
        method("x", "data_ptr", ref("lp")),
        method("x", "storage", ref("lp")),
        method("x", "apply_", ref("lp")),
        method("x", "multinomial", ref("lp"), 1),
        method("x", "sum"),
        method("x", "sum", 3),
        CustomLossNode(op="get_attr", name="x", target="weight"),
        CustomLossNode(op="call_module", name="x", target="linear", args=[ref("lp")]),
        CustomLossNode(op="placeholder", name="x", target="other"),
    ],
    ids=lambda node: f"{node.op} {node.target} {node.args}"[:60],
)
def test_what_is_not_listed_is_refused_by_name(node: CustomLossNode) -> None:
    error = refusal(graph(PLACEHOLDER, node, SUM, output("s")))
    assert node.op == "placeholder" or (node.target in error and "nodes[1]" in error)


@pytest.mark.parametrize(
    "args",
    [
        ["__import__('os')"],
        [2**63],
        [{"ref": "later"}],
        [{"ref": "s"}],
        [{"ref": ["lp"]}],
        [{"ref": "lp", "tuple": []}],
        [{}],
        [{"float": "1e400"}],
        [{"float": 3}],
        [{"dtype": "complex64"}],
        [{"dtype": "__class__"}],
        [{"device": "cuda:0"}],
        [{"layout": "sparse_coo"}],
        [{"memory_format": "channels_last"}],
        [{"ellipsis": False}],
        [{"slice": [1, 2]}],
        [{"function": "eval"}],
        [[0] * 300],
        [[[[[[[[1]]]]]]]],
    ],
    ids=str,
)
def test_an_argument_of_another_form_is_refused(args: list[Any]) -> None:
    assert "s" in refusal(graph(PLACEHOLDER, method("s", "sum", ref("lp"), *args), output("s")))


@pytest.mark.parametrize(
    "kwargs",
    [{"generator": None}, {"pin_memory": True}, {"out": ref("lp")}, {"inplace": True}, {"": 1}],
)
def test_a_keyword_that_could_do_harm_is_refused(kwargs: dict[str, Any]) -> None:
    node = function("s", "torch.nn.functional.relu", ref("lp"), **kwargs)
    assert "keyword" in refusal(graph(PLACEHOLDER, node, output("s")))


def test_a_second_argument_of_relu_is_refused() -> None:
    """It would be `inplace`."""
    node = function("s", "torch.nn.functional.relu", ref("lp"), True)
    assert "more than one" in refusal(graph(PLACEHOLDER, node, output("s")))


LOGPROBS = ref("lp")


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (graph(), "begins with one placeholder"),
        (graph(PLACEHOLDER), "ends with one output"),
        (graph(PLACEHOLDER, output("lp"), output("lp")), "ends with one output"),
        (graph(PLACEHOLDER, output("lp"), SUM), "ends with one output"),
        (graph(SUM, PLACEHOLDER, output("s")), "begins with one placeholder"),
        (graph(PLACEHOLDER, SUM, SUM, output("s")), "a name of its own"),
        (graph(PLACEHOLDER, method("a b", "sum", LOGPROBS), output("lp")), "a name of its own"),
        (graph(PLACEHOLDER, output("nothing")), "refers to 'nothing'"),
        (graph(PLACEHOLDER, CustomLossNode(op="output", name="o", target="output")), "is (loss,"),
        (
            graph(PLACEHOLDER, CustomLossNode(op="output", name="o", target="o", args=[LOGPROBS])),
            "is (loss, metrics)",
        ),
        (graph(PLACEHOLDER, output("lp", **{"UPPER": "lp"})), "in lower case"),
        (graph(PLACEHOLDER, output("lp", **{f"m{n}": "lp" for n in range(65)})), "at most 64"),
        (graph(PLACEHOLDER, output("lp"), inputs=()), "takes logprobs of rank 1 or 2 first"),
        (
            graph(PLACEHOLDER, output("lp"), inputs=(CustomLossInput(name="logprobs", rank=0),)),
            "of rank 1 or 2 first",
        ),
        (
            graph(PLACEHOLDER, output("lp"), inputs=(INPUT, INPUT)),
            "names of their own",
        ),
        (
            graph(PLACEHOLDER, output("lp"), inputs=(INPUT, CustomLossInput(name="A b", rank=1))),
            "lower-case",
        ),
        (
            loss_of(*(method(f"n{n}", "exp", LOGPROBS) for n in range(MAX_NODES))),
            f"{MAX_NODES} is the limit",
        ),
    ],
)
def test_a_graph_of_another_form_is_refused(loss: UploadedLoss, words: str) -> None:
    assert words in refusal(loss)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["ref", "tuple", "dict", "slice", "dtype", "float", "device", "x"]),
            inner,
            max_size=2,
        )
    ),
    max_leaves=8,
)
NODES = st.builds(
    CustomLossNode,
    op=st.sampled_from(["placeholder", "call_function", "call_method", "output", "get_attr"]),
    name=st.sampled_from(["lp", "a", "b", "c", "__x__", ""]),
    target=st.sampled_from([*sorted(FUNCTIONS)[:40], *sorted(METHODS)[:40], "eval", "logprobs"]),
    args=st.lists(JSON, max_size=3),
    kwargs=st.dictionaries(st.sampled_from(["dim", "out", "x"]), JSON, max_size=2),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(NODES, max_size=6))
def test_any_graph_is_checked_or_refused(nodes: list[CustomLossNode]) -> None:
    codes = {outcome(graph(*nodes)), outcome(graph(PLACEHOLDER, *nodes, output("lp")))}
    assert codes <= {"", "bad-custom-loss"}


def outcome(loss: UploadedLoss) -> str:
    """The code of the refusal; empty if there is none."""
    try:
        check_loss(loss)
    except EngineUserError as error:
        return error.code
    return ""


def test_a_graph_is_checked_without_torch() -> None:
    code = "import sys, tinkex.engine.custom_loss.checks; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
