"""AdminClient: calls for the administrators of an account."""

from __future__ import annotations

from tinkex.client.call_errors import errors_in_futures
from tinkex.client.rest import RestClient


@errors_in_futures
class AdminClient(RestClient):
    """The calls of an account's administrators. Self-hosted servers have none of them.

    Args:
        base_url: The server's address.
        api_key: The key; by default that of the environment or of `tinkex auth login`.
        config: Every setting, in place of the two above.
        runtime: The thread that does the work; by default the one all clients share.
    """
