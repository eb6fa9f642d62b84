"""ModelInput: what a model reads, as a list of chunks (text tokens, images, audio).

Token ids are kept as int32 bytes, the form in which training requests carry them: one check when
the chunk is made, none afterwards. Knows nothing of tokenizers beyond calling `encode`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, Self

import msgspec

from tinkex.errors import TokenizerError, ValidationError
from tinkex.types._fields import sent
from tinkex.types._model import Holds, ProtocolModel
from tinkex.types._numbers import as_int
from tinkex.types._pydantic_calls import PydanticCalls
from tinkex.types._sample_arrays import ints_of

ImageFormat = Literal["png", "jpeg"]
_SHOWN_TOKENS = 16
_IMAGE_FORMATS = ("png", "jpeg")


class Tokenizer(Protocol):
    """The interface of tokenizers: text to token ids and back."""

    def encode(self, text: str) -> Any:
        """Returns the token ids of a text, or an object that has them as `ids`."""
        ...

    def decode(self, token_ids: list[int]) -> str:
        """Returns the text of token ids."""
        ...


@dataclass(init=False, repr=False, eq=False)
class _TextForm:
    """The fields of a text chunk, as msgspec and `dataclasses` see them."""

    __slots__ = ()
    tokens: Sequence[int]
    type: Literal["encoded_text"] = "encoded_text"


class EncodedTextChunk(_TextForm, PydanticCalls):
    """A run of token ids.

    >>> EncodedTextChunk(tokens=[1, 2, 3]).length
    3
    """

    __slots__ = ("_raw",)

    def __init__(
        self, tokens: Iterable[int] = (), type: Literal["encoded_text"] = "encoded_text"
    ) -> None:
        self._raw = _packed(tokens)
        self.type = type  # pyright: ignore[reportIncompatibleVariableOverride]

    def __post_init__(self) -> None:
        """Called by msgspec alone, which makes a chunk by setting its fields one by one."""

    @classmethod
    def from_bytes(cls, raw: bytes) -> Self:
        """Builds a chunk from the little-endian int32 tokens in `raw`."""
        if len(raw) % 4:
            raise ValidationError(f"{len(raw)} bytes are no whole number of int32 token ids.")
        chunk = cls.__new__(cls)
        chunk._raw = bytes(raw)
        return chunk

    @property
    def raw(self) -> bytes:
        """The token ids as little-endian int32 bytes."""
        return self._raw

    @property  # a field in the form, computed here
    def tokens(self) -> list[int]:
        """The token ids."""
        values = array("i")
        values.frombytes(self._raw)
        return values.tolist()

    @tokens.setter
    def tokens(self, values: Iterable[int]) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        if hasattr(self, "_raw"):
            raise AttributeError("A chunk does not change; make another one.")
        self._raw = _packed(values)

    @property
    def type(self) -> Literal["encoded_text"]:
        """The name of this kind of chunk in the protocol."""
        return "encoded_text"

    @type.setter
    def type(self, value: str) -> None:
        if value != "encoded_text":
            raise ValidationError(f"type={value!r:.80} must be 'encoded_text'.")

    @property
    def length(self) -> int:
        """The number of context positions that the chunk takes."""
        return len(self._raw) // 4

    def __eq__(self, other: object) -> bool:
        return self._raw == other._raw if isinstance(other, EncodedTextChunk) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._raw)

    def __repr__(self) -> str:
        if self.length <= _SHOWN_TOKENS:
            return f"EncodedTextChunk(tokens={self.tokens})"
        first = ", ".join(map(str, ints_of(self._raw[: 4 * _SHOWN_TOKENS])))
        return f"<EncodedTextChunk {self.length} tokens [{first}, ...]>"

    def __reduce__(self) -> tuple[Any, ...]:
        return EncodedTextChunk.from_bytes, (self._raw,)


def _packed(tokens: Any) -> bytes:
    """Token ids as little-endian int32 bytes."""
    if hasattr(tokens, "tolist"):  # numpy and torch arrays
        tokens = tokens.tolist()
    if isinstance(tokens, bytes | bytearray):  # a byte is a token; array() would read four as one
        tokens = list(tokens)
    try:
        values = array("i", tokens)
    except (TypeError, ValueError, OverflowError) as error:
        if isinstance(tokens, list | tuple) and not all(type(each) is int for each in tokens):
            return _packed([as_int("a token id", each) for each in tokens])
        raise ValidationError(f"Token ids must be integers that fit 32 bits: {error}.") from error
    if values and min(values) < 0:
        raise ValidationError(f"Token ids cannot be negative, got {min(values)}.")
    return values.tobytes()


class _MediaChunk(ProtocolModel, frozen=True, kw_only=True, omit_defaults=True):
    """Base of the chunks that are not text."""

    def _require_length(self, expected_tokens: int | None) -> int:
        if expected_tokens is None:
            raise ValidationError(
                f"The length of {type(self).__name__} is known only with expected_tokens.",
                hint="Pass expected_tokens= when you make the chunk.",
            )
        return expected_tokens


class ImageChunk(_MediaChunk, frozen=True, kw_only=True):
    """An image's file content."""

    data: bytes
    format: ImageFormat
    expected_tokens: int | None = None
    type: Literal["image"] = sent("image")

    def __post_init__(self) -> None:
        _check_format(self.format)

    def __repr__(self) -> str:
        return f"<ImageChunk {self.format}, {len(self.data)} bytes>"

    @property
    def length(self) -> int:
        """The number of context positions that the image is expected to take."""
        return self._require_length(self.expected_tokens)


class ImageAssetPointerChunk(_MediaChunk, frozen=True, kw_only=True):
    """An image the server already has or can fetch; for sampling only."""

    format: ImageFormat
    location: str
    expected_tokens: int | None = None
    type: Literal["image_asset_pointer"] = sent("image_asset_pointer")

    def __post_init__(self) -> None:
        _check_format(self.format)

    @property
    def length(self) -> int:
        """The number of context positions that the image is expected to take."""
        return self._require_length(self.expected_tokens)


class DmelChunk(_MediaChunk, frozen=True, kw_only=True):
    """Audio as a serialised mel-spectrogram tensor."""

    dmel: bytes
    type: Literal["dmel"] = sent("dmel")

    def __repr__(self) -> str:
        return f"<DmelChunk {len(self.dmel)} bytes>"

    @property
    def length(self) -> int:
        """The number of context positions that the audio takes: the tensor's first dimension."""
        return _tensor_container_rows(self.dmel)


def _check_format(name: str) -> None:
    if name not in _IMAGE_FORMATS:
        raise ValidationError(f"format={name!r} is not one of {', '.join(_IMAGE_FORMATS)}.")


def _tensor_container_rows(raw: bytes) -> int:
    """Returns the first dimension named in a tensor container's header.

    Header: an optional byte 254 (constant marker), a dtype byte 0-7, then varints: ndim, dims.
    """
    at = 1 if raw[:1] == b"\xfe" else 0
    if len(raw) <= at or raw[at] > 7:
        raise ValidationError("The dmel bytes do not begin with a tensor header.")
    ndim, at = _read_varint(raw, at + 1)
    return _read_varint(raw, at)[0] if ndim else 0


def _read_varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(raw) and shift < 64:
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValidationError("The dmel bytes end inside the tensor header.")


ModelInputChunk = EncodedTextChunk | ImageChunk | ImageAssetPointerChunk | DmelChunk
_CHUNKS: dict[str, type[ModelInputChunk]] = {
    "encoded_text": EncodedTextChunk,
    "image": ImageChunk,
    "image_asset_pointer": ImageAssetPointerChunk,
    "dmel": DmelChunk,
}

if TYPE_CHECKING:
    _Chunks = list[ModelInputChunk]
else:  # msgspec cannot distinguish the chunks itself: `__post_init__` does
    _Chunks = Annotated[list[Any], Holds(list[ModelInputChunk])]


class ModelInput(ProtocolModel, frozen=True, kw_only=True):
    """The input of a model: a list of chunks.

    >>> ModelInput.from_ints([1, 2]).append_int(3).to_ints()
    [1, 2, 3]
    """

    chunks: _Chunks

    def __post_init__(self) -> None:
        given: Any = self.chunks
        if not isinstance(given, Iterable) or isinstance(given, str | bytes | Mapping):
            raise ValidationError(f"chunks={given!r:.80} must be a list of chunks.")
        if not all(isinstance(chunk, ModelInputChunk) for chunk in given):
            chunks = [_to_chunk(chunk) for chunk in given]
            msgspec.structs.force_setattr(self, "chunks", chunks)

    @classmethod
    def from_ints(cls, tokens: Iterable[int]) -> Self:
        """Builds the input from these token ids."""
        return cls(chunks=[EncodedTextChunk(tokens=tokens)])

    @classmethod
    def from_text(cls, text: str, tokenizer: Tokenizer) -> Self:
        """Builds the input from a text's tokens.

        Raises:
            TokenizerError: the tokenizer could not encode the text; its message says why.
        """
        try:
            encoded = tokenizer.encode(text)
        except Exception as error:
            raise TokenizerError(f"The tokenizer could not encode the text: {error}") from error
        return cls.from_ints(getattr(encoded, "ids", encoded))

    @classmethod
    def empty(cls) -> Self:
        """Builds an empty input."""
        return cls(chunks=[])

    @property
    def length(self) -> int:
        """The number of context positions that the input takes."""
        return sum(chunk.length for chunk in self.chunks)

    def append(self, chunk: ModelInputChunk) -> ModelInput:
        """Returns a new input with one more chunk at the end."""
        return ModelInput(chunks=[*self.chunks, chunk])

    def append_int(self, token: int) -> ModelInput:
        """Returns a new input with one more token at the end."""
        return self.append(EncodedTextChunk(tokens=[token]))

    def to_ints(self) -> list[int]:
        """Returns all token ids in order.

        Raises:
            ValidationError: the input holds images or audio, which have no token ids.
        """
        return [token for tokens in self._text_tokens() for token in tokens]

    def _text_tokens(self) -> Sequence[list[int]]:
        for chunk in self.chunks:
            if not isinstance(chunk, EncodedTextChunk):
                raise ValidationError(
                    f"A {type(chunk).__name__} has no token ids; to_ints works on text alone."
                )
        return [chunk.tokens for chunk in self.chunks if isinstance(chunk, EncodedTextChunk)]


def _to_chunk(given: Any) -> ModelInputChunk:
    """Returns a chunk, or the one that a dict describes."""
    if isinstance(given, ModelInputChunk):
        return given
    if not isinstance(given, Mapping):
        raise ValidationError(
            f"A ModelInput is made of chunks, not of {type(given).__name__}.",
            hint="For token ids use ModelInput.from_ints([...]).",
        )
    kind = given.get("type", "encoded_text" if "tokens" in given else None)
    if kind not in _CHUNKS:
        raise ValidationError(f"A chunk's type={kind!r:.80} is none of {', '.join(_CHUNKS)}.")
    return _CHUNKS[kind].model_validate(given)
