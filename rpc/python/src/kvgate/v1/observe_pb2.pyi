from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from kvgate.v1 import cluster_pb2 as _cluster_pb2
from kvgate.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetBudgetRequest(_message.Message):
    __slots__ = ("pool", "stale")
    POOL_FIELD_NUMBER: _ClassVar[int]
    STALE_FIELD_NUMBER: _ClassVar[int]
    pool: str
    stale: bool
    def __init__(self, pool: _Optional[str] = ..., stale: bool = ...) -> None: ...

class GetBudgetResponse(_message.Message):
    __slots__ = ("ceiling", "reserved", "available", "epoch", "degraded", "pressure", "waiting", "leases", "degraded_reason", "oldest_wait", "pool", "pressure_threshold", "admission")
    CEILING_FIELD_NUMBER: _ClassVar[int]
    RESERVED_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_FIELD_NUMBER: _ClassVar[int]
    PRESSURE_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_REASON_FIELD_NUMBER: _ClassVar[int]
    OLDEST_WAIT_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    PRESSURE_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    ADMISSION_FIELD_NUMBER: _ClassVar[int]
    ceiling: int
    reserved: int
    available: int
    epoch: int
    degraded: bool
    pressure: float
    waiting: int
    leases: int
    degraded_reason: str
    oldest_wait: _duration_pb2.Duration
    pool: str
    pressure_threshold: float
    admission: bool
    def __init__(self, ceiling: _Optional[int] = ..., reserved: _Optional[int] = ..., available: _Optional[int] = ..., epoch: _Optional[int] = ..., degraded: bool = ..., pressure: _Optional[float] = ..., waiting: _Optional[int] = ..., leases: _Optional[int] = ..., degraded_reason: _Optional[str] = ..., oldest_wait: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., pool: _Optional[str] = ..., pressure_threshold: _Optional[float] = ..., admission: bool = ...) -> None: ...

class GetTicketRequest(_message.Message):
    __slots__ = ("pool", "ticket_id", "stale")
    POOL_FIELD_NUMBER: _ClassVar[int]
    TICKET_ID_FIELD_NUMBER: _ClassVar[int]
    STALE_FIELD_NUMBER: _ClassVar[int]
    pool: str
    ticket_id: str
    stale: bool
    def __init__(self, pool: _Optional[str] = ..., ticket_id: _Optional[str] = ..., stale: bool = ...) -> None: ...

class GetTicketResponse(_message.Message):
    __slots__ = ("state", "wait_reason", "position", "waited", "lease_id", "expires_in", "reservation_tokens", "grant", "holder_id", "session_id", "explanation")
    STATE_FIELD_NUMBER: _ClassVar[int]
    WAIT_REASON_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    WAITED_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_IN_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    HOLDER_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    EXPLANATION_FIELD_NUMBER: _ClassVar[int]
    state: _types_pb2.TicketState
    wait_reason: _types_pb2.WaitReason
    position: int
    waited: _duration_pb2.Duration
    lease_id: str
    expires_in: _duration_pb2.Duration
    reservation_tokens: int
    grant: int
    holder_id: str
    session_id: str
    explanation: str
    def __init__(self, state: _Optional[_Union[_types_pb2.TicketState, str]] = ..., wait_reason: _Optional[_Union[_types_pb2.WaitReason, str]] = ..., position: _Optional[int] = ..., waited: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., lease_id: _Optional[str] = ..., expires_in: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., reservation_tokens: _Optional[int] = ..., grant: _Optional[int] = ..., holder_id: _Optional[str] = ..., session_id: _Optional[str] = ..., explanation: _Optional[str] = ...) -> None: ...

class ListLeasesRequest(_message.Message):
    __slots__ = ("pool", "page_size", "page_token", "stale", "holder_id", "session_id")
    POOL_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    STALE_FIELD_NUMBER: _ClassVar[int]
    HOLDER_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    pool: str
    page_size: int
    page_token: str
    stale: bool
    holder_id: str
    session_id: str
    def __init__(self, pool: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., stale: bool = ..., holder_id: _Optional[str] = ..., session_id: _Optional[str] = ...) -> None: ...

class ListLeasesResponse(_message.Message):
    __slots__ = ("leases", "next_page_token")
    LEASES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedCompositeFieldContainer[Lease]
    next_page_token: str
    def __init__(self, leases: _Optional[_Iterable[_Union[Lease, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ("lease_id", "ticket_id", "reservation_tokens", "owner_epoch", "holder_id", "session_id", "held", "expires_in", "grant", "group_id")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    TICKET_ID_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OWNER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    HOLDER_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_IN_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    ticket_id: str
    reservation_tokens: int
    owner_epoch: int
    holder_id: str
    session_id: str
    held: _duration_pb2.Duration
    expires_in: _duration_pb2.Duration
    grant: int
    group_id: str
    def __init__(self, lease_id: _Optional[str] = ..., ticket_id: _Optional[str] = ..., reservation_tokens: _Optional[int] = ..., owner_epoch: _Optional[int] = ..., holder_id: _Optional[str] = ..., session_id: _Optional[str] = ..., held: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., expires_in: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., grant: _Optional[int] = ..., group_id: _Optional[str] = ...) -> None: ...

class ListWaitersRequest(_message.Message):
    __slots__ = ("pool", "page_size", "page_token", "stale")
    POOL_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    STALE_FIELD_NUMBER: _ClassVar[int]
    pool: str
    page_size: int
    page_token: str
    stale: bool
    def __init__(self, pool: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., stale: bool = ...) -> None: ...

class ListWaitersResponse(_message.Message):
    __slots__ = ("waiters", "next_page_token")
    WAITERS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    waiters: _containers.RepeatedCompositeFieldContainer[Waiter]
    next_page_token: str
    def __init__(self, waiters: _Optional[_Iterable[_Union[Waiter, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class Waiter(_message.Message):
    __slots__ = ("ticket_id", "position", "reservation_tokens", "wait_reason", "waited", "attached", "holder_id", "session_id", "priority", "ages_in", "group_id")
    TICKET_ID_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WAIT_REASON_FIELD_NUMBER: _ClassVar[int]
    WAITED_FIELD_NUMBER: _ClassVar[int]
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    HOLDER_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    AGES_IN_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    ticket_id: str
    position: int
    reservation_tokens: int
    wait_reason: _types_pb2.WaitReason
    waited: _duration_pb2.Duration
    attached: bool
    holder_id: str
    session_id: str
    priority: int
    ages_in: _duration_pb2.Duration
    group_id: str
    def __init__(self, ticket_id: _Optional[str] = ..., position: _Optional[int] = ..., reservation_tokens: _Optional[int] = ..., wait_reason: _Optional[_Union[_types_pb2.WaitReason, str]] = ..., waited: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., attached: bool = ..., holder_id: _Optional[str] = ..., session_id: _Optional[str] = ..., priority: _Optional[int] = ..., ages_in: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., group_id: _Optional[str] = ...) -> None: ...

class ListEnginesRequest(_message.Message):
    __slots__ = ("pool", "stale")
    POOL_FIELD_NUMBER: _ClassVar[int]
    STALE_FIELD_NUMBER: _ClassVar[int]
    pool: str
    stale: bool
    def __init__(self, pool: _Optional[str] = ..., stale: bool = ...) -> None: ...

class ListEnginesResponse(_message.Message):
    __slots__ = ("engines", "discovery", "snapshot_age")
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    DISCOVERY_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_AGE_FIELD_NUMBER: _ClassVar[int]
    engines: _containers.RepeatedCompositeFieldContainer[Engine]
    discovery: str
    snapshot_age: _duration_pb2.Duration
    def __init__(self, engines: _Optional[_Iterable[_Union[Engine, _Mapping]]] = ..., discovery: _Optional[str] = ..., snapshot_age: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Engine(_message.Message):
    __slots__ = ("url", "healthy", "error", "capacity_tokens", "used_tokens", "evictable_tokens", "usage", "pressure", "dp_ranks", "role", "eviction_rate", "running_requests", "queued_requests")
    URL_FIELD_NUMBER: _ClassVar[int]
    HEALTHY_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_TOKENS_FIELD_NUMBER: _ClassVar[int]
    USED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EVICTABLE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    PRESSURE_FIELD_NUMBER: _ClassVar[int]
    DP_RANKS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    EVICTION_RATE_FIELD_NUMBER: _ClassVar[int]
    RUNNING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    url: str
    healthy: bool
    error: str
    capacity_tokens: int
    used_tokens: int
    evictable_tokens: int
    usage: float
    pressure: float
    dp_ranks: int
    role: _types_pb2.EngineRole
    eviction_rate: float
    running_requests: int
    queued_requests: int
    def __init__(self, url: _Optional[str] = ..., healthy: bool = ..., error: _Optional[str] = ..., capacity_tokens: _Optional[int] = ..., used_tokens: _Optional[int] = ..., evictable_tokens: _Optional[int] = ..., usage: _Optional[float] = ..., pressure: _Optional[float] = ..., dp_ranks: _Optional[int] = ..., role: _Optional[_Union[_types_pb2.EngineRole, str]] = ..., eviction_rate: _Optional[float] = ..., running_requests: _Optional[int] = ..., queued_requests: _Optional[int] = ...) -> None: ...

class ListPoolsRequest(_message.Message):
    __slots__ = ("stale",)
    STALE_FIELD_NUMBER: _ClassVar[int]
    stale: bool
    def __init__(self, stale: bool = ...) -> None: ...

class ListPoolsResponse(_message.Message):
    __slots__ = ("pools",)
    POOLS_FIELD_NUMBER: _ClassVar[int]
    pools: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, pools: _Optional[_Iterable[str]] = ...) -> None: ...

class ReadJournalRequest(_message.Message):
    __slots__ = ("from_index", "pool", "ticket_id", "session_id", "holder_id", "group_id", "kinds", "since", "until", "page_size", "page_token", "stale", "since_ledger_time", "until_ledger_time")
    FROM_INDEX_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    TICKET_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    HOLDER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    STALE_FIELD_NUMBER: _ClassVar[int]
    SINCE_LEDGER_TIME_FIELD_NUMBER: _ClassVar[int]
    UNTIL_LEDGER_TIME_FIELD_NUMBER: _ClassVar[int]
    from_index: int
    pool: str
    ticket_id: str
    session_id: str
    holder_id: str
    group_id: str
    kinds: _containers.RepeatedScalarFieldContainer[str]
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    page_size: int
    page_token: str
    stale: bool
    since_ledger_time: int
    until_ledger_time: int
    def __init__(self, from_index: _Optional[int] = ..., pool: _Optional[str] = ..., ticket_id: _Optional[str] = ..., session_id: _Optional[str] = ..., holder_id: _Optional[str] = ..., group_id: _Optional[str] = ..., kinds: _Optional[_Iterable[str]] = ..., since: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., stale: bool = ..., since_ledger_time: _Optional[int] = ..., until_ledger_time: _Optional[int] = ...) -> None: ...

class ReadJournalResponse(_message.Message):
    __slots__ = ("events", "next_page_token", "first_kept_index", "last_index", "first_kept_time")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    FIRST_KEPT_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    FIRST_KEPT_TIME_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[JournalEvent]
    next_page_token: str
    first_kept_index: int
    last_index: int
    first_kept_time: _timestamp_pb2.Timestamp
    def __init__(self, events: _Optional[_Iterable[_Union[JournalEvent, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., first_kept_index: _Optional[int] = ..., last_index: _Optional[int] = ..., first_kept_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class WatchEventsRequest(_message.Message):
    __slots__ = ("from_index", "from_n", "from_start", "pool", "ticket_id", "session_id", "holder_id", "group_id", "kinds")
    FROM_INDEX_FIELD_NUMBER: _ClassVar[int]
    FROM_N_FIELD_NUMBER: _ClassVar[int]
    FROM_START_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    TICKET_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    HOLDER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    from_index: int
    from_n: int
    from_start: bool
    pool: str
    ticket_id: str
    session_id: str
    holder_id: str
    group_id: str
    kinds: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, from_index: _Optional[int] = ..., from_n: _Optional[int] = ..., from_start: bool = ..., pool: _Optional[str] = ..., ticket_id: _Optional[str] = ..., session_id: _Optional[str] = ..., holder_id: _Optional[str] = ..., group_id: _Optional[str] = ..., kinds: _Optional[_Iterable[str]] = ...) -> None: ...

class WatchEventsResponse(_message.Message):
    __slots__ = ("events", "next_index", "next_n", "trimmed_before")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_INDEX_FIELD_NUMBER: _ClassVar[int]
    NEXT_N_FIELD_NUMBER: _ClassVar[int]
    TRIMMED_BEFORE_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[JournalEvent]
    next_index: int
    next_n: int
    trimmed_before: int
    def __init__(self, events: _Optional[_Iterable[_Union[JournalEvent, _Mapping]]] = ..., next_index: _Optional[int] = ..., next_n: _Optional[int] = ..., trimmed_before: _Optional[int] = ...) -> None: ...

class JournalEvent(_message.Message):
    __slots__ = ("index", "n", "ledger_time", "wall_time", "pool", "kind", "ticket_id", "session_id", "holder_id", "group_id", "tokens", "lease_id", "grant", "epoch", "reason", "wait", "reserved_after", "ceiling_after", "priority", "deadline", "detail", "waiting_after", "arrival", "measured", "settings_before", "settings_after", "engines", "pin_id", "in_flight", "by")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    LEDGER_TIME_FIELD_NUMBER: _ClassVar[int]
    WALL_TIME_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TICKET_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    HOLDER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    RESERVED_AFTER_FIELD_NUMBER: _ClassVar[int]
    CEILING_AFTER_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    WAITING_AFTER_FIELD_NUMBER: _ClassVar[int]
    ARRIVAL_FIELD_NUMBER: _ClassVar[int]
    MEASURED_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_BEFORE_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_AFTER_FIELD_NUMBER: _ClassVar[int]
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    PIN_ID_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    index: int
    n: int
    ledger_time: int
    wall_time: _timestamp_pb2.Timestamp
    pool: str
    kind: str
    ticket_id: str
    session_id: str
    holder_id: str
    group_id: str
    tokens: int
    lease_id: str
    grant: int
    epoch: int
    reason: str
    wait: _duration_pb2.Duration
    reserved_after: int
    ceiling_after: int
    priority: int
    deadline: int
    detail: str
    waiting_after: int
    arrival: Arrival
    measured: Measured
    settings_before: _cluster_pb2.Settings
    settings_after: _cluster_pb2.Settings
    engines: _containers.RepeatedScalarFieldContainer[str]
    pin_id: str
    in_flight: int
    by: str
    def __init__(self, index: _Optional[int] = ..., n: _Optional[int] = ..., ledger_time: _Optional[int] = ..., wall_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., pool: _Optional[str] = ..., kind: _Optional[str] = ..., ticket_id: _Optional[str] = ..., session_id: _Optional[str] = ..., holder_id: _Optional[str] = ..., group_id: _Optional[str] = ..., tokens: _Optional[int] = ..., lease_id: _Optional[str] = ..., grant: _Optional[int] = ..., epoch: _Optional[int] = ..., reason: _Optional[str] = ..., wait: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., reserved_after: _Optional[int] = ..., ceiling_after: _Optional[int] = ..., priority: _Optional[int] = ..., deadline: _Optional[int] = ..., detail: _Optional[str] = ..., waiting_after: _Optional[int] = ..., arrival: _Optional[_Union[Arrival, _Mapping]] = ..., measured: _Optional[_Union[Measured, _Mapping]] = ..., settings_before: _Optional[_Union[_cluster_pb2.Settings, _Mapping]] = ..., settings_after: _Optional[_Union[_cluster_pb2.Settings, _Mapping]] = ..., engines: _Optional[_Iterable[str]] = ..., pin_id: _Optional[str] = ..., in_flight: _Optional[int] = ..., by: _Optional[str] = ...) -> None: ...

class Arrival(_message.Message):
    __slots__ = ("prompt_tokens", "max_new_tokens", "reservation_tokens", "mode", "protected", "max_wait", "ttl", "pool_wait")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    PROTECTED_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    POOL_WAIT_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    max_new_tokens: int
    reservation_tokens: int
    mode: _types_pb2.Mode
    protected: bool
    max_wait: _duration_pb2.Duration
    ttl: _duration_pb2.Duration
    pool_wait: bool
    def __init__(self, prompt_tokens: _Optional[int] = ..., max_new_tokens: _Optional[int] = ..., reservation_tokens: _Optional[int] = ..., mode: _Optional[_Union[_types_pb2.Mode, str]] = ..., protected: bool = ..., max_wait: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., ttl: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., pool_wait: bool = ...) -> None: ...

class Measured(_message.Message):
    __slots__ = ("capacity_tokens", "used_tokens", "evictable_tokens", "pressure", "eviction_rate", "running_requests", "queued_requests", "healthy_engines", "known_engines")
    CAPACITY_TOKENS_FIELD_NUMBER: _ClassVar[int]
    USED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EVICTABLE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PRESSURE_FIELD_NUMBER: _ClassVar[int]
    EVICTION_RATE_FIELD_NUMBER: _ClassVar[int]
    RUNNING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    HEALTHY_ENGINES_FIELD_NUMBER: _ClassVar[int]
    KNOWN_ENGINES_FIELD_NUMBER: _ClassVar[int]
    capacity_tokens: int
    used_tokens: int
    evictable_tokens: int
    pressure: float
    eviction_rate: float
    running_requests: int
    queued_requests: int
    healthy_engines: int
    known_engines: int
    def __init__(self, capacity_tokens: _Optional[int] = ..., used_tokens: _Optional[int] = ..., evictable_tokens: _Optional[int] = ..., pressure: _Optional[float] = ..., eviction_rate: _Optional[float] = ..., running_requests: _Optional[int] = ..., queued_requests: _Optional[int] = ..., healthy_engines: _Optional[int] = ..., known_engines: _Optional[int] = ...) -> None: ...

class DrainStepRequest(_message.Message):
    __slots__ = ("pool", "step", "run_id")
    POOL_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    pool: str
    step: int
    run_id: str
    def __init__(self, pool: _Optional[str] = ..., step: _Optional[int] = ..., run_id: _Optional[str] = ...) -> None: ...

class DrainStepResponse(_message.Message):
    __slots__ = ("metrics", "step")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    METRICS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    metrics: _containers.ScalarMap[str, float]
    step: int
    def __init__(self, metrics: _Optional[_Mapping[str, float]] = ..., step: _Optional[int] = ...) -> None: ...
