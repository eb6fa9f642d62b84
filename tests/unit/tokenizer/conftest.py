"""Tiny tokenizers made on the spot."""

import json

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

TEXT = [
    "the quick brown fox jumps over the lazy dog",
    "The capital of France is Paris. It's nice, isn't it?",
    "def main(): return 42",
    "übergrößenträger 日本語 🙂",
]
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SETTINGS = {
    "bos_token": "<|begin|>",
    "eos_token": "<|im_end|>",
    "pad_token": {"__type": "AddedToken", "content": "<|pad|>", "special": True},
    "chat_template": CHATML,
    "tokenizer_class": "PreTrainedTokenizerFast",
}


def make_backend() -> Tokenizer:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[
            AddedToken(text, special=True)
            for text in ("<|begin|>", "<|im_start|>", "<|im_end|>", "<|pad|>")
        ],
        show_progress=False,
    )
    backend.train_from_iterator(TEXT, trainer)
    return backend


@pytest.fixture(scope="session")
def backend() -> Tokenizer:
    return make_backend()


@pytest.fixture
def make_folder(tmp_path, backend):
    """A function that writes a tokenizer folder with the given settings."""

    def make(path=None, *, backend=backend, files=None, **settings):
        folder = path or tmp_path / "tokenizer"
        folder.mkdir(parents=True, exist_ok=True)
        backend.save(str(folder / "tokenizer.json"))
        content = {**SETTINGS, **settings}
        (folder / "tokenizer_config.json").write_text(
            json.dumps({name: value for name, value in content.items() if value is not None})
        )
        for name, text in (files or {}).items():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        return folder

    return make
