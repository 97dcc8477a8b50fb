from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODE_UNSPECIFIED: _ClassVar[Mode]
    MODE_TRAIN: _ClassVar[Mode]
    MODE_EVAL: _ClassVar[Mode]

class Action(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACTION_UNSPECIFIED: _ClassVar[Action]
    ACTION_ADMIT: _ClassVar[Action]
    ACTION_BYPASS: _ClassVar[Action]
    ACTION_WAIT: _ClassVar[Action]

class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REASON_UNSPECIFIED: _ClassVar[Reason]
    REASON_CAPACITY_AVAILABLE: _ClassVar[Reason]
    REASON_PROTECTED: _ClassVar[Reason]
    REASON_DEGRADED: _ClassVar[Reason]
    REASON_AGED: _ClassVar[Reason]
    REASON_CANCELLED: _ClassVar[Reason]
    REASON_OVERSIZED: _ClassVar[Reason]
    REASON_DISABLED: _ClassVar[Reason]
    REASON_OUT_OF_SCOPE: _ClassVar[Reason]
    REASON_SESSION_CLOSING: _ClassVar[Reason]
    REASON_ABANDONED: _ClassVar[Reason]

class WaitReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WAIT_REASON_UNSPECIFIED: _ClassVar[WaitReason]
    WAIT_REASON_PRESSURE_GUARD: _ClassVar[WaitReason]
    WAIT_REASON_CAPACITY_EXHAUSTED: _ClassVar[WaitReason]
    WAIT_REASON_OLDER_WAITER: _ClassVar[WaitReason]

class CancelState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CANCEL_STATE_UNSPECIFIED: _ClassVar[CancelState]
    CANCEL_STATE_WAITING: _ClassVar[CancelState]
    CANCEL_STATE_LEASED: _ClassVar[CancelState]
    CANCEL_STATE_UNKNOWN: _ClassVar[CancelState]

class TicketState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TICKET_STATE_UNSPECIFIED: _ClassVar[TicketState]
    TICKET_STATE_UNKNOWN: _ClassVar[TicketState]
    TICKET_STATE_WAITING: _ClassVar[TicketState]
    TICKET_STATE_LEASED: _ClassVar[TicketState]

class Scope(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SCOPE_UNSPECIFIED: _ClassVar[Scope]
    SCOPE_TRAIN: _ClassVar[Scope]
    SCOPE_ALL: _ClassVar[Scope]

class Oversize(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OVERSIZE_UNSPECIFIED: _ClassVar[Oversize]
    OVERSIZE_BYPASS: _ClassVar[Oversize]
    OVERSIZE_WAIT: _ClassVar[Oversize]

class CapacityRoles(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CAPACITY_ROLES_UNSPECIFIED: _ClassVar[CapacityRoles]
    CAPACITY_ROLES_AUTO: _ClassVar[CapacityRoles]
    CAPACITY_ROLES_REGULAR: _ClassVar[CapacityRoles]
    CAPACITY_ROLES_DECODE: _ClassVar[CapacityRoles]
    CAPACITY_ROLES_PREFILL: _ClassVar[CapacityRoles]

class CloseScope(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CLOSE_SCOPE_UNSPECIFIED: _ClassVar[CloseScope]
    CLOSE_SCOPE_BROADCAST: _ClassVar[CloseScope]
    CLOSE_SCOPE_SERVED: _ClassVar[CloseScope]

class EngineRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENGINE_ROLE_UNSPECIFIED: _ClassVar[EngineRole]
    ENGINE_ROLE_REGULAR: _ClassVar[EngineRole]
    ENGINE_ROLE_PREFILL: _ClassVar[EngineRole]
    ENGINE_ROLE_DECODE: _ClassVar[EngineRole]
    ENGINE_ROLE_ENCODE: _ClassVar[EngineRole]
MODE_UNSPECIFIED: Mode
MODE_TRAIN: Mode
MODE_EVAL: Mode
ACTION_UNSPECIFIED: Action
ACTION_ADMIT: Action
ACTION_BYPASS: Action
ACTION_WAIT: Action
REASON_UNSPECIFIED: Reason
REASON_CAPACITY_AVAILABLE: Reason
REASON_PROTECTED: Reason
REASON_DEGRADED: Reason
REASON_AGED: Reason
REASON_CANCELLED: Reason
REASON_OVERSIZED: Reason
REASON_DISABLED: Reason
REASON_OUT_OF_SCOPE: Reason
REASON_SESSION_CLOSING: Reason
REASON_ABANDONED: Reason
WAIT_REASON_UNSPECIFIED: WaitReason
WAIT_REASON_PRESSURE_GUARD: WaitReason
WAIT_REASON_CAPACITY_EXHAUSTED: WaitReason
WAIT_REASON_OLDER_WAITER: WaitReason
CANCEL_STATE_UNSPECIFIED: CancelState
CANCEL_STATE_WAITING: CancelState
CANCEL_STATE_LEASED: CancelState
CANCEL_STATE_UNKNOWN: CancelState
TICKET_STATE_UNSPECIFIED: TicketState
TICKET_STATE_UNKNOWN: TicketState
TICKET_STATE_WAITING: TicketState
TICKET_STATE_LEASED: TicketState
SCOPE_UNSPECIFIED: Scope
SCOPE_TRAIN: Scope
SCOPE_ALL: Scope
OVERSIZE_UNSPECIFIED: Oversize
OVERSIZE_BYPASS: Oversize
OVERSIZE_WAIT: Oversize
CAPACITY_ROLES_UNSPECIFIED: CapacityRoles
CAPACITY_ROLES_AUTO: CapacityRoles
CAPACITY_ROLES_REGULAR: CapacityRoles
CAPACITY_ROLES_DECODE: CapacityRoles
CAPACITY_ROLES_PREFILL: CapacityRoles
CLOSE_SCOPE_UNSPECIFIED: CloseScope
CLOSE_SCOPE_BROADCAST: CloseScope
CLOSE_SCOPE_SERVED: CloseScope
ENGINE_ROLE_UNSPECIFIED: EngineRole
ENGINE_ROLE_REGULAR: EngineRole
ENGINE_ROLE_PREFILL: EngineRole
ENGINE_ROLE_DECODE: EngineRole
ENGINE_ROLE_ENCODE: EngineRole

class Binding(_message.Message):
    __slots__ = ("engine_url", "dp_rank")
    ENGINE_URL_FIELD_NUMBER: _ClassVar[int]
    DP_RANK_FIELD_NUMBER: _ClassVar[int]
    engine_url: str
    dp_rank: int
    def __init__(self, engine_url: _Optional[str] = ..., dp_rank: _Optional[int] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "completion_tokens", "cached_tokens", "engine_url", "outcome")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_URL_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    engine_url: str
    outcome: str
    def __init__(self, prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., engine_url: _Optional[str] = ..., outcome: _Optional[str] = ...) -> None: ...

class ErrorInfo(_message.Message):
    __slots__ = ("code", "field", "retry_after", "leader_hint")
    CODE_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_FIELD_NUMBER: _ClassVar[int]
    LEADER_HINT_FIELD_NUMBER: _ClassVar[int]
    code: str
    field: str
    retry_after: _duration_pb2.Duration
    leader_hint: str
    def __init__(self, code: _Optional[str] = ..., field: _Optional[str] = ..., retry_after: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., leader_hint: _Optional[str] = ...) -> None: ...
