"""Is the hand-written protobuf codec faster than the protobuf runtime?

Both start from the same datums and end with the same values: a training request of 64 sequences of
512 tokens is written, read back as a server would, and its result is written and read. The runtime
uses the official client's generated classes. CPU time, medians, the two sides in turn.

    python benchmarks/bench_codec.py [--rounds 200] [--check 1.0]

Prints one JSON line. With --check it fails if ours is slower than the given multiple of the runtime
in any of the four.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import time
from array import array
from collections.abc import Callable
from itertools import pairwise

from tinker.proto import tinker_public_pb2 as pb

from tinkex.types import Datum, EncodedTextChunk, ForwardBackwardOutput, ModelInput, TensorData
from tinkex.wire import protobuf

BATCH, LENGTH = 64, 512
DTYPES = {"float32": pb.DTYPE_FLOAT32, "int64": pb.DTYPE_INT64}
NAMES = {number: name for name, number in DTYPES.items()}
ITEM_BYTES = {"float32": 4, "int64": 8}


def make_data() -> list[Datum]:
    """Returns plain fine-tuning datums: tokens, targets, weights."""
    rng = random.Random(0)
    data = []
    for _ in range(BATCH):
        tokens = [rng.randrange(150_000) for _ in range(LENGTH + 1)]
        inputs = {"target_tokens": tokens[1:], "weights": [1.0] * LENGTH}
        data.append(Datum(ModelInput.from_ints(tokens[:-1]), inputs))
    return data


def make_output() -> ForwardBackwardOutput:
    """Returns a result with one logprob for each token."""
    outputs = [{"logprobs": TensorData([-0.5] * LENGTH, "float32", [LENGTH])} for _ in range(BATCH)]
    return ForwardBackwardOutput(
        loss_fn_output_type="ArrayRecord", loss_fn_outputs=outputs, metrics={"loss:sum": 1.5}
    )


def encode_ours(data: list[Datum]) -> bytes:
    return b"".join(
        protobuf.encode_forward_backward_request(
            model_id="session:train:0",
            seq_id=7,
            data=data,
            loss_fn="cross_entropy",
            loss_fn_config=None,
            forward_only=False,
        )
    )


def encode_runtime(data: list[Datum]) -> bytes:
    message = pb.ForwardBackwardRequest(
        model_id="session:train:0", seq_id=7, loss_fn="cross_entropy"
    )
    for datum in data:
        added = message.data.add()
        for chunk in datum.model_input.chunks:
            assert isinstance(chunk, EncodedTextChunk)
            added.model_input.add().encoded_text.tokens = chunk.raw
        for name, tensor in datum.loss_fn_inputs.items():
            entry = added.loss_fn_inputs[name]
            entry.dense = tensor.raw
            entry.dtype = DTYPES[tensor.dtype]
            entry.shape.extend(tensor.shape)
    return message.SerializeToString()


def decode_request_runtime(body: bytes) -> list[Datum]:
    message = pb.ForwardBackwardRequest()
    message.ParseFromString(body)
    data = []
    for item in message.data:
        chunks = [
            EncodedTextChunk.from_bytes(chunk.encoded_text.tokens) for chunk in item.model_input
        ]
        inputs = {
            name: TensorData.from_bytes(tensor.dense, NAMES[tensor.dtype], list(tensor.shape))
            for name, tensor in item.loss_fn_inputs.items()
        }
        data.append(Datum(ModelInput(chunks=chunks), inputs))
    return data


def encode_output_runtime(output: ForwardBackwardOutput) -> bytes:
    message = pb.ForwardBackwardOutput(loss_fn_output_type=output.loss_fn_output_type)
    record = message.loss_fn_outputs.add(num_datums=len(output.loss_fn_outputs))
    for name in output.loss_fn_outputs[0]:
        tensors = [item[name] for item in output.loss_fn_outputs]
        offsets = array("q", [0])
        for tensor in tensors:
            offsets.append(offsets[-1] + len(tensor.raw))
        column = record.fields[name]
        column.data = b"".join(tensor.raw for tensor in tensors)
        column.offsets = offsets.tobytes()
        column.dtype = DTYPES[tensors[0].dtype]
    message.metrics.update(output.metrics)
    return message.SerializeToString()


def decode_output_runtime(body: bytes) -> ForwardBackwardOutput:
    message = pb.ForwardBackwardOutput()
    message.ParseFromString(body)
    outputs: list[dict[str, TensorData]] = []
    for record in message.loss_fn_outputs:
        columns = {name: _cut(column) for name, column in record.fields.items()}
        outputs += [
            {name: column[i] for name, column in columns.items()} for i in range(record.num_datums)
        ]
    return ForwardBackwardOutput(
        loss_fn_output_type=message.loss_fn_output_type,
        loss_fn_outputs=outputs,
        metrics=dict(message.metrics),
    )


def _cut(column: pb.BatchedTensor) -> list[TensorData]:
    offsets = array("q")
    offsets.frombytes(column.offsets)
    data, name, trailing = column.data, NAMES[column.dtype], list(column.trailing_shape)
    step = ITEM_BYTES[name] * math.prod(trailing)
    return [
        TensorData.from_bytes(data[a:b], name, [(b - a) // step, *trailing])
        for a, b in pairwise(offsets)
    ]


def compare(sides: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Returns the median CPU microseconds of each side, measured in turn."""
    spent: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, run in sides.items():
            start = time.process_time_ns()
            run()
            spent[name].append((time.process_time_ns() - start) / 1000)
    return {name: round(statistics.median(times), 1) for name, times in spent.items()}


def measure(rounds: int) -> dict[str, dict[str, float]]:
    data, output = make_data(), make_output()
    body, result = encode_ours(data), protobuf.encode_forward_backward_output(output)
    assert protobuf.decode_forward_backward_request(encode_runtime(data)).data == data
    assert decode_request_runtime(body) == data
    assert protobuf.decode_forward_backward_output(encode_output_runtime(output)) == output
    assert decode_output_runtime(result) == output
    pairs: dict[str, dict[str, Callable[[], object]]] = {
        "encode_request": {
            "ours": lambda: encode_ours(data),
            "ours_unjoined": lambda: protobuf.encode_datums(data),
            "runtime": lambda: encode_runtime(data),
        },
        "decode_request": {
            "ours": lambda: protobuf.decode_forward_backward_request(body),
            "runtime": lambda: decode_request_runtime(body),
        },
        "encode_output": {
            "ours": lambda: protobuf.encode_forward_backward_output(output),
            "runtime": lambda: encode_output_runtime(output),
        },
        "decode_output": {
            "ours": lambda: protobuf.decode_forward_backward_output(result),
            "runtime": lambda: decode_output_runtime(result),
        },
    }
    return {name: compare(sides, rounds) for name, sides in pairs.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--check", type=float, help="largest allowed ours/runtime")
    options = parser.parse_args()
    found = measure(options.rounds)
    line = {
        "bench": "codec",
        "unit": "us CPU, median",
        "batch": f"{BATCH}x{LENGTH}",
        "n": options.rounds,
        **found,
        "python": sys.version.split()[0],
    }
    print(json.dumps(line))
    worst = max(sides["ours"] / sides["runtime"] for sides in found.values())
    return int(options.check is not None and worst > options.check)


if __name__ == "__main__":
    sys.exit(main())
