"""Protobuf bodies: training requests, and the results of training and sampling.

Written by hand from the field tables in `tinker_public.proto`, without the protobuf runtime: most
of a body is tensors, whose bytes are equal in memory and on the wire, so that encoding refers to
buffers without copying them. This module is the public one; requests and results have a file each.
"""

from __future__ import annotations

from tinkex.wire._pb_request import (
    decode_forward_backward_request,
    encode_datums,
    encode_forward_backward_request,
    frame_forward_backward_request,
    peek_target,
)
from tinkex.wire._pb_result import (
    decode_forward_backward_output,
    decode_sample_response,
    encode_forward_backward_output,
    encode_sample_response,
)

__all__ = [
    "decode_forward_backward_output",
    "decode_forward_backward_request",
    "decode_sample_response",
    "encode_datums",
    "encode_forward_backward_output",
    "encode_forward_backward_request",
    "encode_sample_response",
    "frame_forward_backward_request",
    "peek_target",
]
