"""RecoveryMonitor: notices that a run cannot go on, and continues it from a checkpoint.

A run whose engine or server died comes back by itself; this is for runs that are over for the
server. Nothing is recovered unless a monitor is made. Each run has a lock: the monitor's thread and
a caller of `recover` never recover it at the same time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tinkex import telemetry
from tinkex.client.recovery_policy import (
    EndReason,
    Recovered,
    RecoveryPolicy,
    candidates,
    is_fault_of_checkpoint,
    reason_of,
    reason_told_by,
)
from tinkex.errors import (
    GoneError,
    NotFoundError,
    RecoveryFailedError,
    TinkexError,
)
from tinkex.telemetry import events
from tinkex.types.checkpoint import Checkpoint

if TYPE_CHECKING:
    from tinkex.client.service import ServiceClient
    from tinkex.client.training import TrainingClient

__all__ = ["RecoveryMonitor", "WatchedRun"]

log = logging.getLogger("tinkex")

_CLOSE_S = 5.0


class RecoveryMonitor:
    """Watches runs, and continues those that the server calls ended, corrupted or lost.

    ```python
    with RecoveryMonitor(service, RecoveryPolicy(max_attempts=5)) as monitor:
        run = monitor.watch(training)
        while step < 100:
            try:
                run.client.forward_backward(batches[step], "cross_entropy").result()
                run.client.optim_step(AdamParams()).result()
                step += 1
            except TinkexError as error:
                step = int(run.recover(error).checkpoint.user_metadata["step"])
    ```
    """

    def __init__(self, service: ServiceClient, policy: RecoveryPolicy | None = None) -> None:
        self.policy = policy or RecoveryPolicy()
        self._service = service
        self._own_service: ServiceClient | None = None
        self._runs: list[WatchedRun] = []
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"<RecoveryMonitor of {len(self._runs)} runs>"

    def watch(self, training: TrainingClient) -> WatchedRun:
        """The run as it is watched from now on; its `client` is replaced when it is recovered."""
        run = WatchedRun(self, training)
        with self._lock:
            self._runs.append(run)
            if self._thread is None and self.policy.poll_s is not None:
                self._thread = threading.Thread(
                    target=self._poll, args=(self.policy.poll_s,), name="tinkex-recovery"
                )
                self._thread.daemon = True
                self._thread.start()
        return run

    def unwatch(self, run: WatchedRun) -> None:
        """Ends the watch of a run; does nothing for one that is not watched."""
        with self._lock:
            self._runs = [each for each in self._runs if each is not run]

    def close(self) -> None:
        """Stops watching. Recovered clients go on, in a session of their own if need be.

        A request that is under way to a server that does not answer is waited for some seconds.
        """
        self._stopped.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _poll(self, poll_s: float) -> None:
        while not self._stopped.wait(poll_s):
            with self._lock:
                runs = list(self._runs)
            for run in runs:
                if self._stopped.is_set():
                    return
                run._look()

    # For the runs ------------------------------------------------------------------------------

    @property
    def current_service(self) -> ServiceClient:
        """Where new clients are made: in the given session, or one opened after it ended."""
        return self._own_service or self._service

    def open_new_session(self) -> ServiceClient:
        """Where further clients are made: a new session with the same settings."""
        from tinkex.client.service import ServiceClient

        old = self._service
        self._own_service = ServiceClient(config=old.config, runtime=old._holder.runtime)
        return self._own_service

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._stopped.is_set()

    def pause(self, seconds: float) -> bool:
        """Waits between two attempts; says whether to go on."""
        return not self._stopped.wait(seconds)


class WatchedRun:
    """A run that a RecoveryMonitor watches; made by `RecoveryMonitor.watch`."""

    def __init__(self, monitor: RecoveryMonitor, training: TrainingClient) -> None:
        self.client = training
        """The client to train with: the one given, or the newest that was recovered."""
        self.last_recovery: Recovered | None = None
        """The newest recovery; None as long as there was none."""
        self._monitor = monitor
        self._lock = threading.RLock()
        self._unseen: Recovered | None = None
        self._last_checkpoint: Checkpoint | None = None
        self._gave_up = False

    def __repr__(self) -> str:
        return f"<WatchedRun {self.client.model_id}>"

    def recover(self, error: BaseException | None = None) -> Recovered:
        """The recovery of a run that cannot go on, waited for; that of the monitor if it was first.

        Call it with the error that the run's work ended with.

        Raises:
            RecoveryFailedError: all attempts have failed, or there is no checkpoint.
            TinkexError: the given error, if the server says that the run can go on.
        """
        with self._lock:
            if self._unseen is None:
                reason = reason_told_by(error) or self._reason()
                if reason is not None:
                    self._recover(reason)
            if self._unseen is None:
                raise error or RecoveryFailedError(
                    f"The run {self.client.model_id} is not lost: it can go on.",
                    hint="Use restart() to go back to a checkpoint all the same.",
                )
            recovered, self._unseen = self._unseen, None
            return recovered

    def restart(self) -> Recovered:
        """Continues from a checkpoint, whatever the server says of the run.

        Raises:
            RecoveryFailedError: all attempts have failed, or there is no checkpoint.
        """
        with self._lock:
            self._recover("lost")
            assert self._unseen is not None
            recovered, self._unseen = self._unseen, None
            return recovered

    def _look(self) -> None:
        """One check by the monitor's thread; errors go to the log and the callbacks."""
        if self._gave_up or not self._lock.acquire(blocking=False):
            return
        try:
            reason = self._reason()
            if reason is not None:
                self._recover(reason)
        except TinkexError as error:
            if not self._monitor.is_closed:
                log.warning("run %s: %s", self.client.model_id, error.message)
        finally:
            self._lock.release()

    def _reason(self) -> EndReason | None:
        """Why the server says that the run cannot go on; None if it can."""
        rest = self._monitor.current_service.create_rest_client()
        try:
            run = rest.get_training_run(self.client.model_id).result()
        except NotFoundError:
            return "lost"
        except GoneError:
            return "ended"
        self._last_checkpoint = run.last_checkpoint or self._last_checkpoint
        return reason_of(run)

    def _recover(self, reason: EndReason) -> None:
        """Attempts to recover until one works.

        Raises:
            RecoveryFailedError: none did.
        """
        policy = self._monitor.policy
        self._emit(events.RECOVERY_DETECTED, 0, error=reason)
        _call(policy.on_detected, self.client.model_id, reason)
        bad: set[str] = set()
        for attempt in range(1, policy.max_attempts + 1):
            try:
                recovered = self._attempt(attempt, reason, bad)
            except TinkexError as error:
                self._emit(events.RECOVERY_FAILED, attempt, error=error.message)
                has_more = attempt < policy.max_attempts and not isinstance(
                    error, RecoveryFailedError
                )
                if has_more and self._monitor.pause(policy.pause_s(attempt)):
                    continue
                raise self._exhausted(attempt, error) from error
            self._hand_over(recovered)
            return

    def _attempt(self, attempt: int, reason: EndReason, bad: set[str]) -> Recovered:
        self._emit(events.RECOVERY_STARTED, attempt)
        checkpoint = self._chosen(bad)
        path = checkpoint.tinker_path
        self._emit(events.RECOVERY_CHECKPOINT_SELECTED, attempt, path)
        try:
            client = self._created(path)
        except TinkexError as error:
            if is_fault_of_checkpoint(error):
                bad.add(path)
            raise
        self._emit(events.RECOVERY_CLIENT_CREATED, attempt, path)
        return Recovered(
            run_id=self.client.model_id,
            reason=reason,
            client=client,
            checkpoint=checkpoint,
            attempts=attempt,
        )

    def _chosen(self, bad: set[str]) -> Checkpoint:
        rest = self._monitor.current_service.create_rest_client()
        try:
            saved = rest.list_checkpoints(self.client.model_id).result().checkpoints
        except NotFoundError:  # the run's record is gone; its checkpoint may be there still
            saved = [] if self._last_checkpoint is None else [self._last_checkpoint]
        if not saved and self.last_recovery is not None:
            saved = [self.last_recovery.checkpoint]
        offered = candidates(saved, bad, datetime.now(UTC))
        try:
            chosen = self._monitor.policy.choose(offered)
        except Exception as error:
            raise RecoveryFailedError(
                f"The policy's function that chooses a checkpoint raised "
                f"{type(error).__name__}: {error}",
                hint="Correct it, or give a policy with checkpoint='newest'.",
            ) from error
        if chosen is None:
            raise RecoveryFailedError(
                f"The run {self.client.model_id} has no checkpoint to go on from.",
                hint="Save one now and then with save_state; start anew meanwhile.",
            )
        return chosen

    def _created(self, path: str) -> TrainingClient:
        try:
            return self._created_by(self._monitor.current_service, path)
        except GoneError:  # the session is over, and the run with it
            return self._created_by(self._monitor.open_new_session(), path)

    def _created_by(self, service: ServiceClient, path: str) -> TrainingClient:
        if self._monitor.policy.with_optimizer:
            return service.create_training_client_from_state_with_optimizer(path)
        return service.create_training_client_from_state(path)

    def _hand_over(self, recovered: Recovered) -> None:
        run_id = self.client.model_id
        self.client = recovered.client
        self.last_recovery = self._unseen = recovered
        self._last_checkpoint = recovered.checkpoint
        self._gave_up = False
        path = recovered.checkpoint.tinker_path
        self._emit(events.RECOVERY_COMPLETED, recovered.attempts, path, run_id=run_id)
        _call(self._monitor.policy.on_recovered, recovered)

    def _exhausted(self, attempt: int, error: TinkexError) -> RecoveryFailedError:
        self._gave_up = True
        self._emit(events.RECOVERY_EXHAUSTED, attempt, error=error.message)
        failed = RecoveryFailedError(
            f"The run {self.client.model_id} could not be recovered in {attempt} "
            f"attempt{'s' if attempt > 1 else ''}: {error.message}",
            hint=error.hint,
        )
        _call(self._monitor.policy.on_exhausted, self.client.model_id, failed)
        return failed

    def _emit(
        self,
        event: str,
        attempt: int,
        checkpoint: str | None = None,
        *,
        error: str | None = None,
        run_id: str | None = None,
    ) -> None:
        about = {
            "run_id": run_id or self.client.model_id,
            "checkpoint": checkpoint,
            "error": error,
        }
        telemetry.execute(event, {"attempt": attempt}, about)


def _call(callback: Callable[..., Any] | None, *arguments: Any) -> None:
    """Calls a callback of the user; what it raises is logged and changes nothing."""
    if callback is None:
        return
    try:
        callback(*arguments)
    except Exception:
        log.exception("A callback of a RecoveryPolicy failed; the recovery goes on.")
