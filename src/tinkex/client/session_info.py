"""Which session a client's work belongs to."""

from __future__ import annotations

from tinkex.client.shared_session import Holder


class SessionInfo:
    """The session of a client; it is opened at first use."""

    _holder: Holder

    @property
    def holder(self) -> Holder:
        """What the clients of one ServiceClient share, under the official SDK's name.

        Example: `service.holder.get_session_id()`.
        """
        return self._holder

    @property
    def session_id(self) -> str:
        """The session's id, as `RestClient.get_session` takes it. Example: `service.session_id`."""
        return self._holder.get_session_id()
