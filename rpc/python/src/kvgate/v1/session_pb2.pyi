from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from kvgate.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SessionKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SESSION_KIND_UNSPECIFIED: _ClassVar[SessionKind]
    SESSION_KIND_RADIX: _ClassVar[SessionKind]
    SESSION_KIND_STREAMING: _ClassVar[SessionKind]
    SESSION_KIND_BIND: _ClassVar[SessionKind]

class SessionState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SESSION_STATE_UNSPECIFIED: _ClassVar[SessionState]
    SESSION_STATE_OPEN: _ClassVar[SessionState]
    SESSION_STATE_CLOSING: _ClassVar[SessionState]
    SESSION_STATE_CLOSED: _ClassVar[SessionState]
    SESSION_STATE_CLOSED_WITH_FAILURES: _ClassVar[SessionState]

class CloseMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CLOSE_MODE_UNSPECIFIED: _ClassVar[CloseMode]
    CLOSE_MODE_JOIN: _ClassVar[CloseMode]
    CLOSE_MODE_ABORT: _ClassVar[CloseMode]

class ClosePhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CLOSE_PHASE_UNSPECIFIED: _ClassVar[ClosePhase]
    CLOSE_PHASE_JOINING: _ClassVar[ClosePhase]
    CLOSE_PHASE_ABORTING: _ClassVar[ClosePhase]
    CLOSE_PHASE_TELLING: _ClassVar[ClosePhase]
SESSION_KIND_UNSPECIFIED: SessionKind
SESSION_KIND_RADIX: SessionKind
SESSION_KIND_STREAMING: SessionKind
SESSION_KIND_BIND: SessionKind
SESSION_STATE_UNSPECIFIED: SessionState
SESSION_STATE_OPEN: SessionState
SESSION_STATE_CLOSING: SessionState
SESSION_STATE_CLOSED: SessionState
SESSION_STATE_CLOSED_WITH_FAILURES: SessionState
CLOSE_MODE_UNSPECIFIED: CloseMode
CLOSE_MODE_JOIN: CloseMode
CLOSE_MODE_ABORT: CloseMode
CLOSE_PHASE_UNSPECIFIED: ClosePhase
CLOSE_PHASE_JOINING: ClosePhase
CLOSE_PHASE_ABORTING: ClosePhase
CLOSE_PHASE_TELLING: ClosePhase

class Session(_message.Message):
    __slots__ = ("session_id", "state", "kind", "group_id", "in_flight", "binding", "turns", "footprint_tokens", "opened_at", "last_turn_at", "closing_since", "owed", "pool", "idle_timeout", "engine_url", "pins", "phase", "close_reason", "waiting", "acknowledged", "left", "aborts")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    BINDING_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    FOOTPRINT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OPENED_AT_FIELD_NUMBER: _ClassVar[int]
    LAST_TURN_AT_FIELD_NUMBER: _ClassVar[int]
    CLOSING_SINCE_FIELD_NUMBER: _ClassVar[int]
    OWED_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    IDLE_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    ENGINE_URL_FIELD_NUMBER: _ClassVar[int]
    PINS_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    CLOSE_REASON_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    ABORTS_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    state: SessionState
    kind: SessionKind
    group_id: str
    in_flight: _containers.RepeatedScalarFieldContainer[str]
    binding: _types_pb2.Binding
    turns: int
    footprint_tokens: int
    opened_at: _timestamp_pb2.Timestamp
    last_turn_at: _timestamp_pb2.Timestamp
    closing_since: _timestamp_pb2.Timestamp
    owed: _containers.RepeatedCompositeFieldContainer[OwedClose]
    pool: str
    idle_timeout: _duration_pb2.Duration
    engine_url: str
    pins: _containers.RepeatedCompositeFieldContainer[Pin]
    phase: ClosePhase
    close_reason: str
    waiting: int
    acknowledged: int
    left: int
    aborts: _containers.RepeatedCompositeFieldContainer[PendingAbort]
    def __init__(self, session_id: _Optional[str] = ..., state: _Optional[_Union[SessionState, str]] = ..., kind: _Optional[_Union[SessionKind, str]] = ..., group_id: _Optional[str] = ..., in_flight: _Optional[_Iterable[str]] = ..., binding: _Optional[_Union[_types_pb2.Binding, _Mapping]] = ..., turns: _Optional[int] = ..., footprint_tokens: _Optional[int] = ..., opened_at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., last_turn_at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., closing_since: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., owed: _Optional[_Iterable[_Union[OwedClose, _Mapping]]] = ..., pool: _Optional[str] = ..., idle_timeout: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., engine_url: _Optional[str] = ..., pins: _Optional[_Iterable[_Union[Pin, _Mapping]]] = ..., phase: _Optional[_Union[ClosePhase, str]] = ..., close_reason: _Optional[str] = ..., waiting: _Optional[int] = ..., acknowledged: _Optional[int] = ..., left: _Optional[int] = ..., aborts: _Optional[_Iterable[_Union[PendingAbort, _Mapping]]] = ...) -> None: ...

class OwedClose(_message.Message):
    __slots__ = ("engine_url", "attempts", "last_error", "failed", "next_try")
    ENGINE_URL_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    NEXT_TRY_FIELD_NUMBER: _ClassVar[int]
    engine_url: str
    attempts: int
    last_error: str
    failed: bool
    next_try: _duration_pb2.Duration
    def __init__(self, engine_url: _Optional[str] = ..., attempts: _Optional[int] = ..., last_error: _Optional[str] = ..., failed: bool = ..., next_try: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class PendingAbort(_message.Message):
    __slots__ = ("ticket_id", "engine_url", "attempts", "last_error", "next_try")
    TICKET_ID_FIELD_NUMBER: _ClassVar[int]
    ENGINE_URL_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    NEXT_TRY_FIELD_NUMBER: _ClassVar[int]
    ticket_id: str
    engine_url: str
    attempts: int
    last_error: str
    next_try: _duration_pb2.Duration
    def __init__(self, ticket_id: _Optional[str] = ..., engine_url: _Optional[str] = ..., attempts: _Optional[int] = ..., last_error: _Optional[str] = ..., next_try: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Pin(_message.Message):
    __slots__ = ("pin_id", "tokens", "expires_in", "ledger_only", "session_id", "engine_url", "held_by")
    PIN_ID_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_IN_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ONLY_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    ENGINE_URL_FIELD_NUMBER: _ClassVar[int]
    HELD_BY_FIELD_NUMBER: _ClassVar[int]
    pin_id: str
    tokens: int
    expires_in: _duration_pb2.Duration
    ledger_only: bool
    session_id: str
    engine_url: str
    held_by: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, pin_id: _Optional[str] = ..., tokens: _Optional[int] = ..., expires_in: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., ledger_only: bool = ..., session_id: _Optional[str] = ..., engine_url: _Optional[str] = ..., held_by: _Optional[_Iterable[str]] = ...) -> None: ...

class OpenSessionRequest(_message.Message):
    __slots__ = ("pool", "session_id", "group_id", "kind", "idle_timeout", "engine_url")
    POOL_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    IDLE_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    ENGINE_URL_FIELD_NUMBER: _ClassVar[int]
    pool: str
    session_id: str
    group_id: str
    kind: SessionKind
    idle_timeout: _duration_pb2.Duration
    engine_url: str
    def __init__(self, pool: _Optional[str] = ..., session_id: _Optional[str] = ..., group_id: _Optional[str] = ..., kind: _Optional[_Union[SessionKind, str]] = ..., idle_timeout: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., engine_url: _Optional[str] = ...) -> None: ...

class OpenSessionResponse(_message.Message):
    __slots__ = ("session", "warnings")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    session: Session
    warnings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ..., warnings: _Optional[_Iterable[str]] = ...) -> None: ...

class TouchSessionRequest(_message.Message):
    __slots__ = ("pool", "session_id")
    POOL_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    pool: str
    session_id: str
    def __init__(self, pool: _Optional[str] = ..., session_id: _Optional[str] = ...) -> None: ...

class TouchSessionResponse(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: Session
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ...) -> None: ...

class BindSessionRequest(_message.Message):
    __slots__ = ("pool", "session_id", "engine_url", "dp_rank", "ttl")
    POOL_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    ENGINE_URL_FIELD_NUMBER: _ClassVar[int]
    DP_RANK_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    pool: str
    session_id: str
    engine_url: str
    dp_rank: int
    ttl: _duration_pb2.Duration
    def __init__(self, pool: _Optional[str] = ..., session_id: _Optional[str] = ..., engine_url: _Optional[str] = ..., dp_rank: _Optional[int] = ..., ttl: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class BindSessionResponse(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: Session
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ...) -> None: ...

class CloseSessionRequest(_message.Message):
    __slots__ = ("pool", "session_id", "mode", "timeout", "wait")
    POOL_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    pool: str
    session_id: str
    mode: CloseMode
    timeout: _duration_pb2.Duration
    wait: bool
    def __init__(self, pool: _Optional[str] = ..., session_id: _Optional[str] = ..., mode: _Optional[_Union[CloseMode, str]] = ..., timeout: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., wait: bool = ...) -> None: ...

class CloseSessionResponse(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: Session
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ...) -> None: ...

class CloseGroupRequest(_message.Message):
    __slots__ = ("pool", "group_id", "mode")
    POOL_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    pool: str
    group_id: str
    mode: CloseMode
    def __init__(self, pool: _Optional[str] = ..., group_id: _Optional[str] = ..., mode: _Optional[_Union[CloseMode, str]] = ...) -> None: ...

class CloseGroupResponse(_message.Message):
    __slots__ = ("closing",)
    CLOSING_FIELD_NUMBER: _ClassVar[int]
    closing: int
    def __init__(self, closing: _Optional[int] = ...) -> None: ...

class GetSessionRequest(_message.Message):
    __slots__ = ("pool", "session_id", "stale")
    POOL_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    STALE_FIELD_NUMBER: _ClassVar[int]
    pool: str
    session_id: str
    stale: bool
    def __init__(self, pool: _Optional[str] = ..., session_id: _Optional[str] = ..., stale: bool = ...) -> None: ...

class GetSessionResponse(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: Session
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ...) -> None: ...

class ListSessionsRequest(_message.Message):
    __slots__ = ("pool", "state", "group_id", "page_size", "page_token", "stale")
    POOL_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    STALE_FIELD_NUMBER: _ClassVar[int]
    pool: str
    state: SessionState
    group_id: str
    page_size: int
    page_token: str
    stale: bool
    def __init__(self, pool: _Optional[str] = ..., state: _Optional[_Union[SessionState, str]] = ..., group_id: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., stale: bool = ...) -> None: ...

class ListSessionsResponse(_message.Message):
    __slots__ = ("sessions", "next_page_token")
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    sessions: _containers.RepeatedCompositeFieldContainer[Session]
    next_page_token: str
    def __init__(self, sessions: _Optional[_Iterable[_Union[Session, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class PinPrefixRequest(_message.Message):
    __slots__ = ("pool", "pin_id", "session_id", "tokens", "token_ids", "ttl", "engine_url")
    POOL_FIELD_NUMBER: _ClassVar[int]
    PIN_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    ENGINE_URL_FIELD_NUMBER: _ClassVar[int]
    pool: str
    pin_id: str
    session_id: str
    tokens: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    ttl: str
    engine_url: str
    def __init__(self, pool: _Optional[str] = ..., pin_id: _Optional[str] = ..., session_id: _Optional[str] = ..., tokens: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., ttl: _Optional[str] = ..., engine_url: _Optional[str] = ...) -> None: ...

class PinPrefixResponse(_message.Message):
    __slots__ = ("pin",)
    PIN_FIELD_NUMBER: _ClassVar[int]
    pin: Pin
    def __init__(self, pin: _Optional[_Union[Pin, _Mapping]] = ...) -> None: ...

class UnpinPrefixRequest(_message.Message):
    __slots__ = ("pool", "pin_id")
    POOL_FIELD_NUMBER: _ClassVar[int]
    PIN_ID_FIELD_NUMBER: _ClassVar[int]
    pool: str
    pin_id: str
    def __init__(self, pool: _Optional[str] = ..., pin_id: _Optional[str] = ...) -> None: ...

class UnpinPrefixResponse(_message.Message):
    __slots__ = ("unpinned",)
    UNPINNED_FIELD_NUMBER: _ClassVar[int]
    unpinned: bool
    def __init__(self, unpinned: bool = ...) -> None: ...

class ListPinsRequest(_message.Message):
    __slots__ = ("pool", "stale", "session_id", "page_size", "page_token")
    POOL_FIELD_NUMBER: _ClassVar[int]
    STALE_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    pool: str
    stale: bool
    session_id: str
    page_size: int
    page_token: str
    def __init__(self, pool: _Optional[str] = ..., stale: bool = ..., session_id: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListPinsResponse(_message.Message):
    __slots__ = ("pins", "next_page_token")
    PINS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    pins: _containers.RepeatedCompositeFieldContainer[Pin]
    next_page_token: str
    def __init__(self, pins: _Optional[_Iterable[_Union[Pin, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...
