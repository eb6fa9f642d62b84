"""Tokenizers: text to token ids and back, as the model was trained with.

Built on the Rust `tokenizers` library; from a local folder, the Hugging Face cache, or the hub.
A model without a `tokenizer.json` is read by `tiktoken` if it has a tiktoken file, else by
`transformers`, if these are installed. Importing this module loads none of them. Knows nothing of
servers.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tinkex.config import ProcessSettings, process_settings
from tinkex.errors import TokenizerError, ValidationError
from tinkex.tokenizers import tiktoken_tokenizer
from tinkex.tokenizers.chat_template import Message, choose_template, read_templates, render_chat
from tinkex.tokenizers.folder import failure, find_folder, resolve_tokenizer_id

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

__all__ = ["Tokenizer", "TokenizerCache", "load_tokenizer", "resolve_tokenizer_id"]

_NAMED_TOKENS: Final = tuple(
    f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
)
_UNSUPPORTED: Final = frozenset(
    {"padding", "truncation", "max_length", "return_tensors", "tokenizer_kwargs"}
    | {"return_assistant_tokens_mask", "sanitize_control_tokens"}
)


class TokenizerCache:
    """A cache of loaded tokenizers, the most recently used ones; safe to share between threads.

    Two threads that need the same tokenizer load it once. A failure is not remembered.
    """

    def __init__(self, max_size: int = 16) -> None:
        self._max_size = max_size
        self._lock = threading.Lock()
        self._loaded: OrderedDict[str, Tokenizer] = OrderedDict()
        self._loading: dict[str, threading.Lock] = {}

    def get(self, key: str, load: Callable[[], Tokenizer]) -> Tokenizer:
        """Returns the tokenizer under this key; loads it if it is not cached."""
        with self._lock:
            turn = self._loading.setdefault(key, threading.Lock())
        with turn:
            with self._lock:
                if key in self._loaded:
                    self._loaded.move_to_end(key)
                    return self._loaded[key]
            tokenizer = load()
            with self._lock:
                self._loaded[key] = tokenizer
                while len(self._loaded) > self._max_size:
                    dropped, _ = self._loaded.popitem(last=False)
                    self._loading.pop(dropped, None)
            return tokenizer

    def __len__(self) -> int:
        return len(self._loaded)


def load_tokenizer(
    id_or_path: str,
    *,
    cache: TokenizerCache | None = None,
    settings: ProcessSettings | None = None,
) -> Tokenizer:
    """Loads the tokenizer of a local folder or a Hugging Face id.

    ```python
    tokenizer = load_tokenizer("HuggingFaceTB/SmolLM2-135M-Instruct")
    tokenizer.encode("Hello")
    ```

    Args:
        id_or_path: The id or the folder.
        cache: Where tokenizers that were loaded before are kept.
        settings: Settings of the process; by default those of its environment.

    Raises:
        TokenizerError: it cannot be found or read; the hint says what to do.
    """
    where = settings or process_settings()
    if cache is None:
        return _load(id_or_path, where)
    return cache.get(id_or_path, lambda: _load(id_or_path, where))


class Tokenizer:
    """Text to token ids and back, with the defaults of `AutoTokenizer`.

    `apply_chat_template` and calling the object work as there, except that ids come back as plain
    lists, and as a bare list unless `return_dict=True`.
    """

    def __init__(
        self,
        backend: Backend | tiktoken_tokenizer.TiktokenBackend,
        *,
        name_or_path: str = "",
        special_tokens: Mapping[str, str] | None = None,
        chat_template: str | Mapping[str, str] | None = None,
        is_cleaning_up: bool = False,
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self.name_or_path = name_or_path
        self.special_tokens_map = dict(special_tokens or {})
        self.chat_template = chat_template
        self._is_cleaning_up = is_cleaning_up

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Returns the ids of a text."""
        if not isinstance(text, str):
            raise ValidationError(f"Only a text can be encoded, not {type(text).__name__}.")
        try:
            return list(self._backend.encode(text, add_special_tokens=add_special_tokens).ids)
        except TypeError as error:
            raise ValidationError(
                "The text is not valid Unicode: it has half a character."
            ) from error

    def decode(self, token_ids: int | Iterable[int], skip_special_tokens: bool = False) -> str:
        """Returns the text of ids, which may be a list, an array or a tensor."""
        to_list = getattr(token_ids, "tolist", None)
        ids = to_list() if to_list else token_ids
        plain = [ids] if isinstance(ids, int) else [int(each) for each in ids]
        try:
            text = self._backend.decode(plain, skip_special_tokens=skip_special_tokens)
        except OverflowError as error:
            raise ValidationError(f"Token ids must be numbers from 0 to 2**32: {error}.") from None
        return _cleaned_up(text) if self._is_cleaning_up else text

    def batch_decode(
        self, sequences: Iterable[Iterable[int]], skip_special_tokens: bool = False
    ) -> list[str]:
        """Returns the texts of several sequences of ids."""
        return [self.decode(each, skip_special_tokens) for each in sequences]

    def __call__(
        self, text: str | Sequence[str], add_special_tokens: bool = True
    ) -> dict[str, list[Any]]:
        """Returns `input_ids` and `attention_mask` of one text or of several, without padding."""
        if isinstance(text, str):
            ids: list[Any] = self.encode(text, add_special_tokens)
            return {"input_ids": ids, "attention_mask": [1] * len(ids)}
        several = [self.encode(each, add_special_tokens) for each in text]
        return {"input_ids": several, "attention_mask": [[1] * len(ids) for ids in several]}

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = False,
        tokenize: bool = True,
        chat_template: str | None = None,
        return_dict: bool = False,
        continue_final_message: bool = False,
        documents: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Returns ids of a conversation, or text with `tokenize=False`; the template gets `kwargs`.

        Raises:
            ValidationError: there is no template, or it refuses the conversation.
        """
        if wanted := sorted(name for name in _UNSUPPORTED & kwargs.keys() if kwargs.pop(name)):
            raise ValidationError(f"apply_chat_template does not support {', '.join(wanted)}.")
        text = render_chat(
            self.get_chat_template(chat_template, tools),
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            documents=documents,
            variables={**self.special_tokens_map, **kwargs},
        )
        if not tokenize:
            return text
        encoded = self(text, add_special_tokens=False)
        return encoded if return_dict else encoded["input_ids"]

    def get_chat_template(
        self, chat_template: str | None = None, tools: Sequence[Mapping[str, Any]] | None = None
    ) -> str:
        """Returns the template that would be used; `chat_template` is a template or the
        name of one."""
        return choose_template(self.chat_template, chat_template, has_tools=tools is not None)

    @property
    def backend(self) -> Backend | tiktoken_tokenizer.TiktokenBackend:
        """The tokenizer object of the library in use."""
        return self._backend

    @property
    def special_ids(self) -> frozenset[int]:
        """The ids that `decode` leaves out with `skip_special_tokens`."""
        if isinstance(self._backend, tiktoken_tokenizer.TiktokenBackend):
            return self._backend.special_ids
        added = self._backend.get_added_tokens_decoder()
        return frozenset(index for index, token in added.items() if token.special)

    @property
    def vocab_size(self) -> int:
        """The size of the vocabulary without added tokens; `len(tokenizer)` counts them too."""
        return int(self._backend.get_vocab_size(with_added_tokens=False))

    def __len__(self) -> int:
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    def convert_tokens_to_ids(self, token: str) -> int | None:
        """Returns the id of one token, or None if it is unknown."""
        return self._backend.token_to_id(token)

    @property
    def eos_token(self) -> str | None:
        """The token that ends a sequence."""
        return self.special_tokens_map.get("eos_token")

    @property
    def bos_token(self) -> str | None:
        """The token that begins a sequence."""
        return self.special_tokens_map.get("bos_token")

    @property
    def pad_token(self) -> str | None:
        """The token that fills up a sequence."""
        return self.special_tokens_map.get("pad_token")

    @property
    def eos_token_id(self) -> int | None:
        """The id of `eos_token`."""
        return self._id_of("eos_token")

    @property
    def bos_token_id(self) -> int | None:
        """The id of `bos_token`."""
        return self._id_of("bos_token")

    @property
    def pad_token_id(self) -> int | None:
        """The id of `pad_token`."""
        return self._id_of("pad_token")

    def _id_of(self, name: str) -> int | None:
        token = self.special_tokens_map.get(name)
        return None if token is None else self.convert_tokens_to_ids(token)

    def __repr__(self) -> str:
        return f"Tokenizer({self.name_or_path!r}, vocab_size={self.vocab_size})"


def _load(id_or_path: str, where: ProcessSettings) -> Tokenizer:
    try:
        folder = find_folder(id_or_path, where)
        return _from_folder(folder, id_or_path)
    except TokenizerError:
        raise
    except Exception as error:  # the native library and the hub raise many kinds of exceptions
        raise failure(id_or_path, str(error) or type(error).__name__) from error


def _from_folder(folder: Path, name: str) -> Tokenizer:
    if not (folder / "tokenizer.json").is_file():
        is_tiktoken = (folder / tiktoken_tokenizer.FILE).is_file()
        return (_from_tiktoken if is_tiktoken else _through_transformers)(folder, name)
    from tokenizers import Tokenizer as Backend

    backend = Backend.from_file(str(folder / "tokenizer.json"))
    settings = _read_settings(folder)
    specials = _named_tokens(settings)
    _complete(backend, settings, specials)
    return Tokenizer(
        backend,
        name_or_path=name,
        special_tokens=specials,
        chat_template=read_templates(folder, settings.get("chat_template")),
        # Made for WordPiece; it would remove blanks that are part of a BPE vocabulary.
        is_cleaning_up=bool(settings.get("clean_up_tokenization_spaces"))
        and type(backend.model).__name__ != "BPE",
    )


def _from_tiktoken(folder: Path, name: str) -> Tokenizer:
    settings = _read_settings(folder)
    try:
        backend = tiktoken_tokenizer.read_tiktoken(folder, settings)
    except ImportError:
        raise failure(
            name,
            f"it comes as {tiktoken_tokenizer.FILE}",
            hint='Install it in the folder of the project: pip install ".[tiktoken]".',
        ) from None
    return Tokenizer(
        backend,
        name_or_path=name,
        special_tokens=_named_tokens(settings),
        chat_template=read_templates(folder, settings.get("chat_template")),
    )


def _through_transformers(folder: Path, name: str) -> Tokenizer:
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise failure(
            name, "it has no tokenizer.json", hint="pip install transformers, which can convert it."
        ) from None
    # Code that comes with a model is never run; by default transformers would prompt.
    converted = AutoTokenizer.from_pretrained(  # nosec B615 # a local folder
        str(folder), trust_remote_code=False
    )
    backend = getattr(converted, "backend_tokenizer", None)
    if backend is None:
        raise failure(name, "it has no tokenizer.json and cannot be converted to one")
    return Tokenizer(
        backend,
        name_or_path=name,
        special_tokens=dict(converted.special_tokens_map),
        chat_template=converted.chat_template,
    )


def _complete(backend: Backend, settings: Mapping[str, Any], specials: Mapping[str, str]) -> None:
    """Adds the tokens that only `tokenizer_config.json` names, as Transformers does.

    Its `add_bos_token` and `add_eos_token` are not followed, there as here: the post-processor of
    `tokenizer.json` says which tokens are put around a text.
    """
    from tokenizers import AddedToken

    known = backend.get_vocab(with_added_tokens=True)
    decoder = settings.get("added_tokens_decoder") or {}
    added = [decoder[each] for each in sorted(decoder, key=int)]
    tokens = [AddedToken(**each) for each in added if each["content"] not in known]
    named = {each.content for each in tokens}
    tokens += [
        AddedToken(token, special=True)
        for token in dict.fromkeys(specials.values())
        if token not in known and token not in named
    ]
    if tokens:
        backend.add_tokens(tokens)


def _named_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    found = {name: settings.get(name) for name in _NAMED_TOKENS}
    texts = {n: each["content"] if isinstance(each, dict) else each for n, each in found.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _read_settings(folder: Path) -> dict[str, Any]:
    named = _read_json(folder / "special_tokens_map.json")
    return named | _read_json(folder / "tokenizer_config.json")


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    content = json.loads(path.read_text(encoding="utf-8"))
    return content if isinstance(content, dict) else {}


def _cleaned_up(text: str) -> str:
    for mark in (" .", " ?", " !", " ,", " n't", " 'm", " 's", " 've", " 're"):
        text = text.replace(mark, mark[1:])
    return text.replace(" ' ", "'")
