"""The server itself: health, version, capabilities and the handshake."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinkex.engine.interface import ROLES
from tinkex.scheduler.workers import worker_name
from tinkex.server.errors import NotReady, error_response, json_response
from tinkex.server.services import services_of
from tinkex.server.submit.bodies import read_json
from tinkex.types._extensions import all_extensions
from tinkex.types._parameters import extensions
from tinkex.types.requests import ClientConfigRequest
from tinkex.types.sampling import SamplingParams
from tinkex.types.session import ClientConfig, ClientDynamicConfig, SupportedModel
from tinkex.version import PROTOCOL_VERSION, __version__


async def healthz(request: Request) -> Response:
    """200 once the server can take work, and what its engine does now.

    It stays 200 while the engine is replaced: work is accepted and waits, so a probe must neither
    restart the server for it nor keep clients from it. With several workers it is 200 once one has
    started: models are placed on those that have.
    """
    services = services_of(request)
    state = services.scheduler.engine_state()
    engine: dict[str, object] = {"state": state.state, "since_s": round(state.since_s, 1)}
    if services.config.workers != 1 or services.config.listen_workers is not None:
        engine["workers"] = [
            {"name": worker_name(n), "state": each.state, "since_s": round(each.since_s, 1)}
            for n, each in enumerate(services.scheduler.engine_states())
        ]
        workers = services.scheduler.workers
        engine["missing_roles"] = [role for role in ROLES if not workers.has_role(role)]
    if services.is_draining or not services.scheduler.is_ready():
        why = "is stopping" if services.is_draining else f"is starting; {services.starting()}"
        return error_response(NotReady(f"The server {why}."), {"engine": engine})
    return json_response({"status": "ok", "engine": engine})


async def version(_request: Request) -> Response:
    """What runs here."""
    return json_response({"version": __version__, "protocol": PROTOCOL_VERSION})


async def capabilities(request: Request) -> Response:
    """The models with their context lengths, the losses, and the limits of this server."""
    services = services_of(request)
    catalog = await services.models()
    limits = msgspec.structs.replace(
        services.config.limits,
        max_disk_bytes_per_owner=await services.db.aread(services.scheduler.disk_quota.limit),
    )
    models = [
        SupportedModel(
            model_name=name,
            max_context_length=catalog.find(name).context_length,
            trainable=True,
            sampleable=True,
        )
        for name in catalog.names()
    ]
    return json_response(
        {
            "supported_models": models,
            "aliases": {alias: each.name for each in catalog.models() for alias in each.aliases},
            "losses": catalog.losses(),
            "sampling_extensions": extensions(SamplingParams),
            "limits": msgspec.to_builtins(limits),
            "server": {"name": "tinkex", "version": __version__},
        }
    )


async def client_config(request: Request) -> Response:
    """How clients should speak to this server."""
    services = services_of(request)
    await read_json(request, ClientConfigRequest, services.config.limits)
    limits = services.config.limits
    return json_response(
        ClientConfig(
            pjwt_auth_enabled=True,
            proto_compress_fwdbwd=True,
            fwdbwd_max_chunk_len=limits.chunk_max_datums,
            fwdbwd_max_chunk_bytes_count=limits.chunk_max_bytes,
            create_model_via_load_weights=True,
            sample_use_retrieve_futures=True,
            sample_join_sampling_session=True,
            custom_loss_server_side=True,
            extensions=all_extensions(),
        )
    )


async def dynamic_config(_request: Request) -> Response:
    """The part of the configuration that may change."""
    return json_response(ClientDynamicConfig(sample_cancel_enabled=True))


ROUTES = [
    Route("/healthz", healthz),
    Route("/version", version),
    Route("/get_server_capabilities", capabilities),
    Route("/client/config", client_config, methods=["POST"]),
    Route("/client/dynamic_config", dynamic_config, methods=["POST"]),
]
