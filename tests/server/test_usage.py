"""What a run has used, as the SDK tells it."""

from __future__ import annotations

from tests.server.driving import MODEL
from tests.support.data import CROSS_ENTROPY, make_data
from tinkex import AdamParams, Config, Runtime, ServiceClient
from tinkex.server.embedded import EmbeddedServer
from tinkex.types import TrainingRunUsage


def test_a_run_counts_its_tokens_and_steps(server: EmbeddedServer) -> None:
    config = Config(base_url=server.base_url, api_key=server.api_key, environ={}, files=())
    with Runtime() as runtime, ServiceClient(config=config, runtime=runtime) as service:
        training = service.create_lora_training_client(MODEL)
        rest = service.create_rest_client()
        assert rest.get_training_run(training.model_id).result(60).usage == TrainingRunUsage()
        training.forward_backward(make_data([3, 5]), CROSS_ENTROPY).result(60)
        training.optim_step(AdamParams()).result(60)
        usage = rest.get_training_run(training.model_id).result(60).usage
    assert usage == TrainingRunUsage(tokens=8, optimizer_steps=1)
