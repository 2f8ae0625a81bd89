"""A turn from request to tokens, and its handle while it runs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from engine.answer_parts import tool_names
from engine.chat import HEAD_ROLES, ChatFormat, behind_head
from engine.errors import ContextLengthExceeded, InvalidRequest
from engine.flow import TurnRecord
from engine.forced_call import ForcedCall
from engine.scheduler import Scheduler, Task
from engine.sessions import Session
from engine.state import SessionState
from engine.types import Message, ToolUse, TurnEvent, TurnRequest

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class RunningTurn:
    """A turn that was admitted. ``state`` is its fork of ``origin``; ``tools`` are those its
    answer may call, ``forced`` the grammar of a call it must make."""

    request: TurnRequest
    session: Session
    origin: SessionState
    state: SessionState
    unresolved: tuple[str, ...]
    on_event: Callable[[TurnEvent], None]
    scheduler: Scheduler
    tools: ToolUse | None = None
    forced: ForcedCall | None = None
    task: Task = field(default_factory=Task.placeholder)
    record: TurnRecord = field(default_factory=TurnRecord)
    admitted: float = field(default_factory=time.perf_counter)
    started: float = 0.0
    prompted: float = 0.0

    @property
    def session_id(self) -> str:
        """Id of its session."""
        return self.session.session_id

    def cancel(self) -> None:
        """Stop before the next step and roll back. Idempotent."""
        self.scheduler.cancel(self.task)

    def start(self) -> None:
        """Note that the step thread took the turn up."""
        self.started = time.perf_counter()

    def prompt_done(self) -> None:
        """Note that the prompt is written."""
        self.prompted = time.perf_counter()

    def emit(self, event: TurnEvent) -> None:
        """Tell the caller; its errors are its own."""
        try:
            self.on_event(event)
        except BaseException:  # whatever it is, the step thread goes on
            log.exception("the event callback of turn %s raised", self.request.request_id)


def usable_tools(
    chat: ChatFormat, state: SessionState, asked: ToolUse | None, model: str
) -> ToolUse | None:
    """The tools of a turn: those of the request, else those of the session.

    Raises:
        InvalidRequest: there are some, but the model knows no tools; or the request requires a
            call of a tool the session does not have.
    """
    tools = asked
    if asked is None or not asked.definitions:
        tools = _session_tools(state, asked or ToolUse(""))
    if tools is not None and chat.tools is None:
        raise InvalidRequest(
            f"the chat template of the model '{model}' does not show tools to the model; leave "
            "'tools' out, or serve a model with a tool template",
            param="tools",
            code="unsupported_value",
        )
    return tools


def _session_tools(state: SessionState, asked: ToolUse) -> ToolUse | None:
    names = tool_names(state.tools) if state.tools is not None else []
    if asked.choice == "required" and (not names or asked.name not in (None, *names)):
        missing = "has no tools" if asked.name is None else f"has no tool '{asked.name}'"
        raise InvalidRequest(
            f"Invalid value for 'tool_choice': the session {missing}.", param="tool_choice"
        )
    return None if state.tools is None else replace(asked, definitions=state.tools)


def extend_state(
    chat: ChatFormat,
    state: SessionState,
    request: TurnRequest,
    room: int,
    limit: int,
    call: bool = False,
) -> tuple[str, ...]:
    """Append the request's messages and the answer's opening to a fork, and update its plan.

    Args:
        room: tokens the fork's origin could still take.
        limit: most logical tokens a session may have.
        call: the answer is to be a call: open it too.

    Returns:
        What of the plan cannot be resolved.

    Raises:
        InvalidRequest: no messages, a bad step, a refused message, an unresolved strict plan.
        ContextLengthExceeded: the prompt does not fit.
    """
    if not request.messages:
        raise InvalidRequest("the request brings no new message", param="messages")
    steps = assign_steps(state.step, request.messages, request.plan.step)
    previous = state.messages[-1].role if len(state.messages) else None
    # an answer ended the head of a state that holds messages
    tools = state.tools if previous is None else behind_head(state.tools)
    for message, step in zip(request.messages, steps, strict=True):
        state.add_message(message, chat.message_tokens(previous, message, tools), step)
        previous = message.role
        if previous not in HEAD_ROLES:
            tools = behind_head(tools)
    state.plan, unresolved = state.plan.update(
        request.plan, steps[0], state.steps, len(state.messages)
    )
    prompt = chat.answer_prompt(previous, tools)
    if call and chat.tools is not None:
        prompt += chat.encode(chat.tools.opening)
    state.open_answer(prompt)
    asked = len(state.tokens)
    allowed = min(limit, state.written + room)
    if asked > allowed:
        raise ContextLengthExceeded(allowed, asked)
    return tuple(unresolved)


def assign_steps(current: int, messages: Sequence[Message], given: int | None) -> list[int]:
    """Step of each new message (DESIGN §4): user messages count on from ``current``, the last
    one takes ``given``.

    Raises:
        InvalidRequest: ``given`` does not rise above the steps before it.
    """
    users = [index for index, message in enumerate(messages) if message.role == "user"]
    if given is not None:
        least = current + len(users) if users else current
        if given < least or (not users and given != current):
            wanted = f"at least {least}" if users else f"{current}, since no user message is new"
            raise InvalidRequest(
                f"pace.step {given} must be {wanted}: steps of a session only rise",
                param="pace.step",
            )
    steps, step = [], current
    for index, message in enumerate(messages):
        if message.role == "user":
            step = given if given is not None and index == users[-1] else step + 1
        steps.append(step)
    return steps
