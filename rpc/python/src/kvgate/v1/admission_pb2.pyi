from google.protobuf import duration_pb2 as _duration_pb2
from kvgate.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AcquireRequest(_message.Message):
    __slots__ = ("pool", "ticket_id", "prompt_tokens", "max_new_tokens", "reservation_tokens", "mode", "protected", "priority", "session_id", "group_id", "holder_id", "rid", "max_wait", "ttl", "call_id")
    POOL_FIELD_NUMBER: _ClassVar[int]
    TICKET_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    PROTECTED_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    HOLDER_ID_FIELD_NUMBER: _ClassVar[int]
    RID_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    pool: str
    ticket_id: str
    prompt_tokens: int
    max_new_tokens: int
    reservation_tokens: int
    mode: _types_pb2.Mode
    protected: bool
    priority: int
    session_id: str
    group_id: str
    holder_id: str
    rid: str
    max_wait: _duration_pb2.Duration
    ttl: _duration_pb2.Duration
    call_id: int
    def __init__(self, pool: _Optional[str] = ..., ticket_id: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., max_new_tokens: _Optional[int] = ..., reservation_tokens: _Optional[int] = ..., mode: _Optional[_Union[_types_pb2.Mode, str]] = ..., protected: bool = ..., priority: _Optional[int] = ..., session_id: _Optional[str] = ..., group_id: _Optional[str] = ..., holder_id: _Optional[str] = ..., rid: _Optional[str] = ..., max_wait: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., ttl: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., call_id: _Optional[int] = ...) -> None: ...

class AcquireResponse(_message.Message):
    __slots__ = ("action", "reason", "ticket_id", "reservation_tokens", "lease_id", "owner_epoch", "waited", "expires_in", "binding", "warnings", "grant")
    ACTION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TICKET_ID_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    WAITED_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_IN_FIELD_NUMBER: _ClassVar[int]
    BINDING_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    action: _types_pb2.Action
    reason: _types_pb2.Reason
    ticket_id: str
    reservation_tokens: int
    lease_id: str
    owner_epoch: int
    waited: _duration_pb2.Duration
    expires_in: _duration_pb2.Duration
    binding: _types_pb2.Binding
    warnings: _containers.RepeatedScalarFieldContainer[str]
    grant: int
    def __init__(self, action: _Optional[_Union[_types_pb2.Action, str]] = ..., reason: _Optional[_Union[_types_pb2.Reason, str]] = ..., ticket_id: _Optional[str] = ..., reservation_tokens: _Optional[int] = ..., lease_id: _Optional[str] = ..., owner_epoch: _Optional[int] = ..., waited: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., expires_in: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., binding: _Optional[_Union[_types_pb2.Binding, _Mapping]] = ..., warnings: _Optional[_Iterable[str]] = ..., grant: _Optional[int] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("pool", "ticket_id", "lease_id", "grant", "usage", "holder_id", "ended_call_id")
    POOL_FIELD_NUMBER: _ClassVar[int]
    TICKET_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    HOLDER_ID_FIELD_NUMBER: _ClassVar[int]
    ENDED_CALL_ID_FIELD_NUMBER: _ClassVar[int]
    pool: str
    ticket_id: str
    lease_id: str
    grant: int
    usage: _types_pb2.Usage
    holder_id: str
    ended_call_id: int
    def __init__(self, pool: _Optional[str] = ..., ticket_id: _Optional[str] = ..., lease_id: _Optional[str] = ..., grant: _Optional[int] = ..., usage: _Optional[_Union[_types_pb2.Usage, _Mapping]] = ..., holder_id: _Optional[str] = ..., ended_call_id: _Optional[int] = ...) -> None: ...

class ReleaseResponse(_message.Message):
    __slots__ = ("released",)
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    released: bool
    def __init__(self, released: bool = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("pool", "lease_ids", "ttl", "grants")
    POOL_FIELD_NUMBER: _ClassVar[int]
    LEASE_IDS_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    pool: str
    lease_ids: _containers.RepeatedScalarFieldContainer[str]
    ttl: _duration_pb2.Duration
    grants: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, pool: _Optional[str] = ..., lease_ids: _Optional[_Iterable[str]] = ..., ttl: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., grants: _Optional[_Iterable[int]] = ...) -> None: ...

class RenewResponse(_message.Message):
    __slots__ = ("leases",)
    LEASES_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedCompositeFieldContainer[RenewedLease]
    def __init__(self, leases: _Optional[_Iterable[_Union[RenewedLease, _Mapping]]] = ...) -> None: ...

class RenewedLease(_message.Message):
    __slots__ = ("lease_id", "renewed", "expires_in")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    RENEWED_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_IN_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    renewed: bool
    expires_in: _duration_pb2.Duration
    def __init__(self, lease_id: _Optional[str] = ..., renewed: bool = ..., expires_in: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("pool", "ticket_id", "call_id", "ended_call_id")
    POOL_FIELD_NUMBER: _ClassVar[int]
    TICKET_ID_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    ENDED_CALL_ID_FIELD_NUMBER: _ClassVar[int]
    pool: str
    ticket_id: str
    call_id: int
    ended_call_id: int
    def __init__(self, pool: _Optional[str] = ..., ticket_id: _Optional[str] = ..., call_id: _Optional[int] = ..., ended_call_id: _Optional[int] = ...) -> None: ...

class CancelResponse(_message.Message):
    __slots__ = ("was",)
    WAS_FIELD_NUMBER: _ClassVar[int]
    was: _types_pb2.CancelState
    def __init__(self, was: _Optional[_Union[_types_pb2.CancelState, str]] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("holder_id",)
    HOLDER_ID_FIELD_NUMBER: _ClassVar[int]
    holder_id: str
    def __init__(self, holder_id: _Optional[str] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("ttl", "leases", "waiters")
    TTL_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    WAITERS_FIELD_NUMBER: _ClassVar[int]
    ttl: _duration_pb2.Duration
    leases: int
    waiters: int
    def __init__(self, ttl: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., leases: _Optional[int] = ..., waiters: _Optional[int] = ...) -> None: ...

class ExchangeRequest(_message.Message):
    __slots__ = ("seq", "acquire", "release", "cancel", "renew", "heartbeat", "more")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    ACQUIRE_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    RENEW_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    seq: int
    acquire: AcquireRequest
    release: ReleaseRequest
    cancel: CancelRequest
    renew: RenewRequest
    heartbeat: HeartbeatRequest
    more: _containers.RepeatedCompositeFieldContainer[ExchangeRequest]
    def __init__(self, seq: _Optional[int] = ..., acquire: _Optional[_Union[AcquireRequest, _Mapping]] = ..., release: _Optional[_Union[ReleaseRequest, _Mapping]] = ..., cancel: _Optional[_Union[CancelRequest, _Mapping]] = ..., renew: _Optional[_Union[RenewRequest, _Mapping]] = ..., heartbeat: _Optional[_Union[HeartbeatRequest, _Mapping]] = ..., more: _Optional[_Iterable[_Union[ExchangeRequest, _Mapping]]] = ...) -> None: ...

class ExchangeResponse(_message.Message):
    __slots__ = ("seq", "acquire", "release", "cancel", "renew", "heartbeat", "error", "more")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    ACQUIRE_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    RENEW_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    seq: int
    acquire: AcquireResponse
    release: ReleaseResponse
    cancel: CancelResponse
    renew: RenewResponse
    heartbeat: HeartbeatResponse
    error: OpError
    more: _containers.RepeatedCompositeFieldContainer[ExchangeResponse]
    def __init__(self, seq: _Optional[int] = ..., acquire: _Optional[_Union[AcquireResponse, _Mapping]] = ..., release: _Optional[_Union[ReleaseResponse, _Mapping]] = ..., cancel: _Optional[_Union[CancelResponse, _Mapping]] = ..., renew: _Optional[_Union[RenewResponse, _Mapping]] = ..., heartbeat: _Optional[_Union[HeartbeatResponse, _Mapping]] = ..., error: _Optional[_Union[OpError, _Mapping]] = ..., more: _Optional[_Iterable[_Union[ExchangeResponse, _Mapping]]] = ...) -> None: ...

class OpError(_message.Message):
    __slots__ = ("code", "message", "info")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    INFO_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    info: _types_pb2.ErrorInfo
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., info: _Optional[_Union[_types_pb2.ErrorInfo, _Mapping]] = ...) -> None: ...

class SubmitRequest(_message.Message):
    __slots__ = ("holder_id", "ops")
    HOLDER_ID_FIELD_NUMBER: _ClassVar[int]
    OPS_FIELD_NUMBER: _ClassVar[int]
    holder_id: str
    ops: _containers.RepeatedCompositeFieldContainer[ExchangeRequest]
    def __init__(self, holder_id: _Optional[str] = ..., ops: _Optional[_Iterable[_Union[ExchangeRequest, _Mapping]]] = ...) -> None: ...

class SubmitResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[ExchangeResponse]
    def __init__(self, results: _Optional[_Iterable[_Union[ExchangeResponse, _Mapping]]] = ...) -> None: ...

class AwaitGrantsRequest(_message.Message):
    __slots__ = ("holder_id", "cursor", "timeout")
    HOLDER_ID_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    holder_id: str
    cursor: str
    timeout: _duration_pb2.Duration
    def __init__(self, holder_id: _Optional[str] = ..., cursor: _Optional[str] = ..., timeout: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class AwaitGrantsResponse(_message.Message):
    __slots__ = ("decisions", "cursor", "reset", "waiting")
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    decisions: _containers.RepeatedCompositeFieldContainer[WaiterDecision]
    cursor: str
    reset: bool
    waiting: int
    def __init__(self, decisions: _Optional[_Iterable[_Union[WaiterDecision, _Mapping]]] = ..., cursor: _Optional[str] = ..., reset: bool = ..., waiting: _Optional[int] = ...) -> None: ...

class WaiterDecision(_message.Message):
    __slots__ = ("pool", "ticket_id", "seq", "acquire", "error")
    POOL_FIELD_NUMBER: _ClassVar[int]
    TICKET_ID_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    ACQUIRE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    pool: str
    ticket_id: str
    seq: int
    acquire: AcquireResponse
    error: OpError
    def __init__(self, pool: _Optional[str] = ..., ticket_id: _Optional[str] = ..., seq: _Optional[int] = ..., acquire: _Optional[_Union[AcquireResponse, _Mapping]] = ..., error: _Optional[_Union[OpError, _Mapping]] = ...) -> None: ...
