"""Which modules the official package has, and where their names are found here."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Final

PACKAGE: Final = "tinker"

_PLACES: Final[Mapping[str, tuple[str, ...]]] = {
    "tinker": ("tinkex.compat.names", "tinkex"),
    "tinker.auth": ("tinkex.auth",),
    "tinker.types": ("tinkex.types", "tinkex.compat.names"),
    "tinker._version": ("tinkex.compat.names",),
    "tinker._exceptions": ("tinkex.errors",),
    "tinker._client": ("tinkex.compat.names",),
    "tinker.lib": (),
    **dict.fromkeys(
        (
            *("tinker.lib.api_future_impl", "tinker.lib.base_url"),
            *("tinker.lib.chunked_fwdbwd_helpers", "tinker.lib.client_connection_pool_type"),
        ),
        ("tinkex.compat.library_names",),
    ),
    "tinker.lib.experimental": ("tinkex.errors", "tinkex.compat.names"),
    "tinker.lib.retry_handler": ("tinkex",),
    "tinker.lib.retryable_exception": ("tinkex.compat.names",),
    **dict.fromkeys(
        (
            "tinker.lib.public_interfaces",
            *(
                f"tinker.lib.public_interfaces.{name}"
                for name in (
                    *(
                        "admin_client",
                        "api_future",
                        "custom_loss",
                        "rest_client",
                        "rest_client_common",
                    ),
                    *("sampling_client", "service_client", "training_client"),
                )
            ),
        ),
        ("tinkex", "tinkex.compat.names"),
    ),
}
"""Where the names of a module are looked for, in this order."""

_TYPE_MODULES: Final = """
    audit_log_entry audit_log_response auth_token_response billing_usage_request
    billing_usage_response checkpoint checkpoints_list_response client_config_request
    client_config_response client_dynamic_config_response copy_weights_request copy_weights_response
    create_custom_loss_request create_custom_loss_response create_model_request
    create_model_response create_sampling_session_request create_sampling_session_response
    create_session_request create_session_response current_checkpoint_storage_usage_request
    current_checkpoint_storage_usage_response cursor custom_loss_graph custom_loss_input datum
    dmel_chunk encoded_text_chunk event_type external_weights_urls_response forward_backward_input
    forward_backward_output forward_backward_request forward_request future_completion
    future_retrieve_request future_retrieve_response futures_retrieve_request
    futures_retrieve_response generic_event get_info_request get_info_response get_sampler_response
    get_server_capabilities_response get_session_response health_response image_asset_pointer_chunk
    image_chunk join_sampling_session_request join_sampling_session_response list_sessions_response
    load_weights_request load_weights_response lora_config loss_fn_inputs loss_fn_output
    loss_fn_type model_id model_input model_input_chunk optim_step_request optim_step_response
    optimizer prompt_alt_tokens provenance_spans request_error_category request_failed_response
    request_id sample_request sample_response sampled_sequence sampling_params
    save_weights_external_request save_weights_external_response save_weights_for_sampler_request
    save_weights_for_sampler_response save_weights_request save_weights_response search_owner
    session_end_event session_heartbeat_request session_heartbeat_response session_search_cursor
    session_search_request session_search_response session_start_event session_status
    session_status_query session_summary severity shared shared.untyped_api_future stop_reason
    telemetry_batch telemetry_event telemetry_response telemetry_send_request tensor_data
    tensor_dtype topk_logprobs training_run training_runs_response try_again_response
    unhandled_exception_event unload_model_request unload_model_response weights_info_response
    whoami_response
"""

_PYDANTIC_MODULES: Final = """
    datum forward_backward_input get_info_response get_sampler_response load_weights_response
    model_input optim_step_response sampling_params save_weights_external_response
    save_weights_for_sampler_response stop_reason tensor_data
"""
"""Where the official package has pydantic forms of types that are dataclasses elsewhere; ours are
both."""

_PYDANTIC: Final = "tinker.types._pydantic_types"

MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    **_PLACES,
    **{f"tinker.types.{name}": _PLACES["tinker.types"] for name in _TYPE_MODULES.split()},
    _PYDANTIC: _PLACES["tinker.types"],
    **{f"{_PYDANTIC}.{name}": _PLACES["tinker.types"] for name in _PYDANTIC_MODULES.split()},
}
"""Every module that can be imported, and where its names are looked for."""


def attribute(module: str, name: str) -> object:
    """What a module's name stands for.

    Raises:
        AttributeError: Tinkex has nothing of this name.
    """
    for place in MODULES[module]:
        try:
            found: object = getattr(importlib.import_module(place), name)
        except AttributeError:
            continue
        return found
    raise AttributeError(f"module {module!r} of tinkex.compat has no attribute {name!r}")


def names_of(module: str) -> list[str]:
    """The public names of a module: those it offers to `import *`."""
    found: dict[str, None] = {}
    for place in MODULES[module]:
        found.update(dict.fromkeys(importlib.import_module(place).__all__))
    return [name for name in found if not name.startswith("__") or module == PACKAGE]
