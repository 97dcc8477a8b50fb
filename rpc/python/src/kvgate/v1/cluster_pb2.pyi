from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from kvgate.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SaveSnapshotRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SaveSnapshotResponse(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class RestoreSnapshotRequest(_message.Message):
    __slots__ = ("confirm", "force", "data")
    CONFIRM_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    confirm: str
    force: bool
    data: bytes
    def __init__(self, confirm: _Optional[str] = ..., force: bool = ..., data: _Optional[bytes] = ...) -> None: ...

class RestoreSnapshotResponse(_message.Message):
    __slots__ = ("index", "archive_index", "dropped", "quarantined")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ARCHIVE_INDEX_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    index: int
    archive_index: int
    dropped: int
    quarantined: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, index: _Optional[int] = ..., archive_index: _Optional[int] = ..., dropped: _Optional[int] = ..., quarantined: _Optional[_Iterable[str]] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("node_id", "leader_id", "state", "term", "applied_index", "commit_index", "nodes", "failure_tolerance", "version", "cluster_id", "writable", "health", "ledger_time", "recorded_until")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    APPLIED_INDEX_FIELD_NUMBER: _ClassVar[int]
    COMMIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    FAILURE_TOLERANCE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    WRITABLE_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    LEDGER_TIME_FIELD_NUMBER: _ClassVar[int]
    RECORDED_UNTIL_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    leader_id: str
    state: str
    term: int
    applied_index: int
    commit_index: int
    nodes: _containers.RepeatedCompositeFieldContainer[Node]
    failure_tolerance: int
    version: str
    cluster_id: str
    writable: bool
    health: str
    ledger_time: int
    recorded_until: _timestamp_pb2.Timestamp
    def __init__(self, node_id: _Optional[str] = ..., leader_id: _Optional[str] = ..., state: _Optional[str] = ..., term: _Optional[int] = ..., applied_index: _Optional[int] = ..., commit_index: _Optional[int] = ..., nodes: _Optional[_Iterable[_Union[Node, _Mapping]]] = ..., failure_tolerance: _Optional[int] = ..., version: _Optional[str] = ..., cluster_id: _Optional[str] = ..., writable: bool = ..., health: _Optional[str] = ..., ledger_time: _Optional[int] = ..., recorded_until: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Node(_message.Message):
    __slots__ = ("id", "address", "voter", "reachable", "applied_index", "version", "api_address", "lag")
    ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    VOTER_FIELD_NUMBER: _ClassVar[int]
    REACHABLE_FIELD_NUMBER: _ClassVar[int]
    APPLIED_INDEX_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    API_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    id: str
    address: str
    voter: bool
    reachable: bool
    applied_index: int
    version: str
    api_address: str
    lag: int
    def __init__(self, id: _Optional[str] = ..., address: _Optional[str] = ..., voter: bool = ..., reachable: bool = ..., applied_index: _Optional[int] = ..., version: _Optional[str] = ..., api_address: _Optional[str] = ..., lag: _Optional[int] = ...) -> None: ...

class AddNodeRequest(_message.Message):
    __slots__ = ("id", "address")
    ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    id: str
    address: str
    def __init__(self, id: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class AddNodeResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RemoveNodeRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class RemoveNodeResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TransferLeadershipRequest(_message.Message):
    __slots__ = ("node_id",)
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    def __init__(self, node_id: _Optional[str] = ...) -> None: ...

class TransferLeadershipResponse(_message.Message):
    __slots__ = ("leader_id",)
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    leader_id: str
    def __init__(self, leader_id: _Optional[str] = ...) -> None: ...

class GetSettingsRequest(_message.Message):
    __slots__ = ("pool",)
    POOL_FIELD_NUMBER: _ClassVar[int]
    pool: str
    def __init__(self, pool: _Optional[str] = ...) -> None: ...

class GetSettingsResponse(_message.Message):
    __slots__ = ("pool", "settings")
    POOL_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    pool: str
    settings: Settings
    def __init__(self, pool: _Optional[str] = ..., settings: _Optional[_Union[Settings, _Mapping]] = ...) -> None: ...

class UpdateSettingsRequest(_message.Message):
    __slots__ = ("pool", "settings", "clear")
    POOL_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    CLEAR_FIELD_NUMBER: _ClassVar[int]
    pool: str
    settings: Settings
    clear: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, pool: _Optional[str] = ..., settings: _Optional[_Union[Settings, _Mapping]] = ..., clear: _Optional[_Iterable[str]] = ...) -> None: ...

class UpdateSettingsResponse(_message.Message):
    __slots__ = ("pool", "settings")
    POOL_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    pool: str
    settings: Settings
    def __init__(self, pool: _Optional[str] = ..., settings: _Optional[_Union[Settings, _Mapping]] = ...) -> None: ...

class DeletePoolRequest(_message.Message):
    __slots__ = ("pool",)
    POOL_FIELD_NUMBER: _ClassVar[int]
    pool: str
    def __init__(self, pool: _Optional[str] = ...) -> None: ...

class DeletePoolResponse(_message.Message):
    __slots__ = ("deleted",)
    DELETED_FIELD_NUMBER: _ClassVar[int]
    deleted: bool
    def __init__(self, deleted: bool = ...) -> None: ...

class Settings(_message.Message):
    __slots__ = ("admission", "lifecycle", "headroom", "pressure_threshold", "expected_decode_cap", "max_wait", "scope", "lease_ttl", "max_ttl", "holder_ttl", "detach_grace", "staleness", "oversize", "max_waiters", "pin_ratio", "router_url", "engine_urls", "poll_interval", "poll_timeout", "model_id", "capacity_roles", "join_timeout", "abort_timeout", "close_deadline", "close_scope", "journal_max_events", "journal_max_age", "quarantine")
    ADMISSION_FIELD_NUMBER: _ClassVar[int]
    LIFECYCLE_FIELD_NUMBER: _ClassVar[int]
    HEADROOM_FIELD_NUMBER: _ClassVar[int]
    PRESSURE_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_DECODE_CAP_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    LEASE_TTL_FIELD_NUMBER: _ClassVar[int]
    MAX_TTL_FIELD_NUMBER: _ClassVar[int]
    HOLDER_TTL_FIELD_NUMBER: _ClassVar[int]
    DETACH_GRACE_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    OVERSIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_WAITERS_FIELD_NUMBER: _ClassVar[int]
    PIN_RATIO_FIELD_NUMBER: _ClassVar[int]
    ROUTER_URL_FIELD_NUMBER: _ClassVar[int]
    ENGINE_URLS_FIELD_NUMBER: _ClassVar[int]
    POLL_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    POLL_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_ROLES_FIELD_NUMBER: _ClassVar[int]
    JOIN_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    ABORT_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    CLOSE_DEADLINE_FIELD_NUMBER: _ClassVar[int]
    CLOSE_SCOPE_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_MAX_EVENTS_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_MAX_AGE_FIELD_NUMBER: _ClassVar[int]
    QUARANTINE_FIELD_NUMBER: _ClassVar[int]
    admission: bool
    lifecycle: bool
    headroom: float
    pressure_threshold: float
    expected_decode_cap: int
    max_wait: _duration_pb2.Duration
    scope: _types_pb2.Scope
    lease_ttl: _duration_pb2.Duration
    max_ttl: _duration_pb2.Duration
    holder_ttl: _duration_pb2.Duration
    detach_grace: _duration_pb2.Duration
    staleness: _duration_pb2.Duration
    oversize: _types_pb2.Oversize
    max_waiters: int
    pin_ratio: float
    router_url: str
    engine_urls: _containers.RepeatedScalarFieldContainer[str]
    poll_interval: _duration_pb2.Duration
    poll_timeout: _duration_pb2.Duration
    model_id: str
    capacity_roles: _types_pb2.CapacityRoles
    join_timeout: _duration_pb2.Duration
    abort_timeout: _duration_pb2.Duration
    close_deadline: _duration_pb2.Duration
    close_scope: _types_pb2.CloseScope
    journal_max_events: int
    journal_max_age: _duration_pb2.Duration
    quarantine: bool
    def __init__(self, admission: bool = ..., lifecycle: bool = ..., headroom: _Optional[float] = ..., pressure_threshold: _Optional[float] = ..., expected_decode_cap: _Optional[int] = ..., max_wait: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., scope: _Optional[_Union[_types_pb2.Scope, str]] = ..., lease_ttl: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., max_ttl: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., holder_ttl: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., detach_grace: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., staleness: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., oversize: _Optional[_Union[_types_pb2.Oversize, str]] = ..., max_waiters: _Optional[int] = ..., pin_ratio: _Optional[float] = ..., router_url: _Optional[str] = ..., engine_urls: _Optional[_Iterable[str]] = ..., poll_interval: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., poll_timeout: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., model_id: _Optional[str] = ..., capacity_roles: _Optional[_Union[_types_pb2.CapacityRoles, str]] = ..., join_timeout: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., abort_timeout: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., close_deadline: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., close_scope: _Optional[_Union[_types_pb2.CloseScope, str]] = ..., journal_max_events: _Optional[int] = ..., journal_max_age: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., quarantine: bool = ...) -> None: ...
