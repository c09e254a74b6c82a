// Generated from proto/ by scripts/proto; do not edit. 64-bit integers are strings in JSON.
interface ListAuditRequest {
  user: string;
  since: number;
  refused: boolean;
  container: string;
  limit: number;
  after?: string;
  before: string;
}
interface ListAuditResponse {
  lines: AuditLine[];
  newest: string;
  trouble: string;
  simulated: boolean;
}
interface AuditLine {
  number: string;
  at: number;
  uid: string;
  user: string;
  pid: string;
  executable: string;
  method: string;
  endpoint: string;
  container: string;
  name: string;
  digest: string;
  status: number;
  code: string;
  text: string;
  more: string;
}
interface ListGpusRequest {
  pool: boolean;
}
interface DrainRequest {
  gpu: string;
  reason: string;
}
interface UndrainRequest {
  gpu: string;
}
interface DrainAnswer {
  gpus: Gpu[];
}
interface Drained {
  reason: string;
  since: number;
  by: string;
  sick: boolean;
}
interface ListGpusResponse {
  gpus: Gpu[];
  simulated: boolean;
  node: string;
  troubles: string[];
  notices: string[];
}
interface Gpu {
  uuid: string;
  index: number;
  name: string;
  mode: string;
  memory_total_bytes: string;
  memory_leasable_bytes: string;
  memory_used_bytes?: string;
  memory_free_bytes: string;
  compute_free_permille: number;
  utilization_ratio?: number;
  temperature_celsius?: number;
  power_watts?: number;
  leases: number;
  memory_unmanaged_bytes: string;
  sharing: string;
  trouble: string;
  sampled_at: number;
  drained?: Drained;
  parent_uuid: string;
  mig_profile: string;
  label: string;
  link_group?: number;
  node: string;
}
interface HistoryWindow {
  since: number;
  until: number;
  user: string;
  project: string;
  class: string;
  node: string;
  pool: boolean;
}
interface Account {
  held_gpu_ms: string;
  active_gpu_ms: string;
  idle_gpu_ms: string;
  too_big_gpu_ms: string;
  well_used_gpu_ms: string;
  unseen_gpu_ms: string;
  held_mib_seconds: string;
  use_of_held_ratio?: number;
  memory_of_held_ratio?: number;
}
interface EndedRequest {
  window?: HistoryWindow;
  outcome: string;
  lease: string;
  job: string;
  limit: number;
}
interface EndedResponse {
  leases: PastLease[];
  more: boolean;
  simulated: boolean;
}
interface PastLease {
  id: string;
  node: string;
  owner: string;
  project: string;
  class: string;
  outcome: string;
  outcome_text: string;
  exit_code?: number;
  asks: string;
  gpu_count: number;
  gpu_labels: string[];
  models: string[];
  created_at: number;
  started_at: number;
  ended_at: number;
  waited_ms: string;
  ran_ms: string;
  time_limit_seconds: string;
  peak_bytes?: string;
  held_bytes?: string;
  use_max_ratio?: number;
  account?: Account;
  preemptions: number;
  restarts: number;
  job: string;
  attempt: number;
  image: string;
  container_name: string;
}
interface PastJobsRequest {
  window?: HistoryWindow;
  outcome: string;
  job: string;
  limit: number;
}
interface PastJobsResponse {
  jobs: PastJob[];
  more: boolean;
  simulated: boolean;
}
interface PastJob {
  id: string;
  owner: string;
  project: string;
  class: string;
  outcome: string;
  outcome_text: string;
  exit_code?: number;
  asks: string;
  node_count: number;
  submitted_at: number;
  started_at: number;
  ended_at: number;
  waited_ms: string;
  reasons: ReasonWait[];
  attempts: number;
  preemptions: number;
  nodes: string[];
  image: string;
  name: string;
}
interface ReportRequest {
  name: string;
  node: string;
  points: number;
  pool: boolean;
}
interface ReportResponse {
  leases: LeaseReport[];
  account?: Account;
  simulated: boolean;
  job?: PastJob;
}
interface LeaseReport {
  lease?: PastLease;
  reasons: ReasonWait[];
  curve: UsePoint[];
  worst_gpu_ratio?: number;
  notes: ReportNote[];
}
interface ReasonWait {
  reason: string;
  waited_ms: string;
}
interface UsePoint {
  at: number;
  use_ratio?: number;
  use_max_ratio?: number;
  memory_ratio?: number;
}
interface ReportNote {
  kind: string;
  text: string;
  mend: string;
}
interface UsageRequest {
  window?: HistoryWindow;
  by: string;
}
interface UsageResponse {
  rows: UsageRow[];
  total?: UsageRow;
  waited_requests: number;
  waited_ms: string;
  simulated: boolean;
}
interface UsageRow {
  key: string;
  leases: number;
  account?: Account;
}
interface WaitsRequest {
  window?: HistoryWindow;
  by: string;
}
interface WaitsResponse {
  rows: WaitsRow[];
  total?: WaitsRow;
  simulated: boolean;
}
interface WaitsRow {
  key: string;
  requests: number;
  waited: number;
  waiting: number;
  p50_ms: string;
  p90_ms: string;
  p99_ms: string;
  longest_ms: string;
  total_ms: string;
}
interface ExportRequest {
  window?: HistoryWindow;
  kind: string;
  page_token: string;
}
interface ExportResponse {
  columns: string[];
  rows: string[];
  next_page_token: string;
  simulated: boolean;
}
interface RecentRequest {
  since: number;
  step_seconds: number;
}
interface RecentResponse {
  gpus: RecentGpu[];
  step_seconds: number;
  since: number;
  until: number;
  simulated: boolean;
}
interface RecentGpu {
  uuid: string;
  label: string;
  name: string;
  steps: RecentStep[];
  holdings: RecentHolding[];
}
interface RecentStep {
  at: number;
  use_ratio?: number;
  memory_used_bytes?: string;
}
interface RecentHolding {
  lease: string;
  owner: string;
  project: string;
  since: number;
  until: number;
  share_permille: number;
  memory_bytes: string;
}
interface LeaseRequest {
  request_id: string;
  gpu: string;
  gpu_memory: string;
  gpu_compute: string;
  preset: string;
  isolation: string;
  class: string;
  time: string;
  immediate: boolean;
  restart_on_fault: number;
  begin_at: number;
  after: string[];
  priority: number;
  notice_signal: string;
  held: boolean;
  requeue?: boolean;
  project: string;
  models: string[];
  near: string[];
  away_from: string[];
  host_cpu_milli: string;
  host_memory_bytes: string;
  ends_with_caller: boolean;
  container_name: string;
  image: string;
  notify: string[];
}
interface HoldRequest {
  lease_id: string;
  held: boolean;
}
interface ExtendRequest {
  lease_id: string;
  time: string;
}
interface PriorityRequest {
  lease_id: string;
  priority: number;
}
interface WaitRequest {
  lease_id: string;
  token: string;
  timeout_seconds: number;
}
interface LeaseRef {
  lease_id: string;
}
interface StopRequest {
  lease_id: string;
  grace_seconds?: number;
}
interface ResizeRequest {
  lease_id: string;
  gpu: string;
  gpu_memory: string;
  gpu_compute: string;
}
interface ResizeAnswer {
  lease?: Lease;
  effects: string[];
}
interface ListLeasesRequest {
  ended: boolean;
  limit: number;
  since: number;
  user: string;
  states: string[];
  page_token: string;
  pool: boolean;
}
interface ListLeasesResponse {
  leases: Lease[];
  unmanaged: UnmanagedProcess[];
  simulated: boolean;
  more: string;
  next_page_token: string;
  notices: string[];
}
interface Grant {
  gpu_uuid: string;
  gpu_index: number;
  gpu_name: string;
  memory_bytes: string;
  compute_permille: number;
  gpu_label: string;
  compute_limit_permille: number;
}
interface Lease {
  id: string;
  state: string;
  owner_uid: string;
  owner: string;
  asks: string;
  class: string;
  isolation: string;
  preset: string;
  grants: Grant[];
  memory_used_bytes?: string;
  memory_wall: string;
  compute_cap: string;
  container_id: string;
  container_name: string;
  image: string;
  created_at: number;
  since: number;
  expires_at: number;
  deadline: number;
  waiting?: Waiting;
  outcome?: Outcome;
  token: string;
  simulated: boolean;
  restart_on_fault: number;
  restarts: number;
  fault: string;
  left_seconds: number;
  priority: number;
  held_by: string;
  begin_at: number;
  after: string[];
  notice?: Notice;
  preempt_step: string;
  preempt_why: string;
  preemptions: number;
  project: string;
  idle_since: number;
  lowered: boolean;
  models: string[];
  near: string[];
  away_from: string[];
  host_cpu_milli: string;
  host_memory_bytes: string;
  job_id: string;
  job_attempt: number;
  job_pool: string;
  node: string;
}
interface Notice {
  kind: string;
  ends_at: number;
  text: string;
}
interface Waiting {
  position: number;
  queue_length: number;
  reason: string;
  text: string;
  start_from: number;
  start_to: number;
}
interface Outcome {
  kind: string;
  exit_code?: number;
  text: string;
}
interface UnmanagedProcess {
  pid: number;
  gpu_uuid: string;
  gpu_index: number;
  memory_bytes?: string;
  user: string;
  command: string;
  node: string;
}
interface StoryEntry {
  at: number;
  state: string;
  text: string;
}
interface Explanation {
  lease?: Lease;
  story: StoryEntry[];
  refusals: Refusal[];
  fits_now: string;
  kept?: Kept;
  gives_way: string;
}
interface Kept {
  lease_id: string;
  gpu_labels: string[];
  start_to: number;
}
interface OfferAnswer {
  asks: string;
  class: string;
  project: string;
  starts_now: boolean;
  grants: Grant[];
  start_to: number;
  gives_way: GivesWay[];
  why: string;
  waiting?: Waiting;
  fits_now: string;
  simulated: boolean;
}
interface GivesWay {
  lease_id: string;
  owner: string;
  asks: string;
  project: string;
  step: string;
}
interface Refusal {
  reason: string;
  gpus: number;
  text: string;
}
interface SubmitRequest {
  request_id: string;
  lease?: LeaseRequest;
  create_body: string;
  image: string;
  platform: string;
  name: string;
  pull: string;
  interactive: boolean;
  pool: boolean;
  node: string;
  nodes: number;
  span: boolean;
  retries: number;
  requeue?: boolean;
  stop_after_seconds: number;
  after: JobAfter[];
  array: string;
  remove: boolean;
  or_here: boolean;
}
interface JobAfter {
  job_id: string;
  ok: boolean;
}
interface SubmitAnswer {
  job_ids: string[];
  array_id: string;
  notes: string[];
}
interface SubmitBatchRequest {
  jobs: SubmitRequest[];
}
interface SubmitBatchAnswer {
  results: SubmitResult[];
}
interface SubmitResult {
  answer?: SubmitAnswer;
  code: string;
  message: string;
  hint: string;
}
interface JobRef {
  job_id: string;
}
interface Job {
  id: string;
  state: string;
  name: string;
  image: string;
  owner: string;
  project: string;
  asks: string;
  class: string;
  submitted_at: number;
  started_at: number;
  ended_at: number;
  attempt: number;
  parts: JobPart[];
  exit_code?: number;
  reason: string;
  hint: string;
  token: string;
  array_id: string;
  array_index?: number;
  pool: boolean;
  interactive: boolean;
  position: number;
  priority: number;
  tries: JobTry[];
}
interface JobTry {
  attempt: number;
  started_at: number;
  ended_at: number;
  parts: JobPart[];
}
interface JobPart {
  node: string;
  state: string;
  lease_id: string;
  rank: number;
  reason: string;
  exit_code?: number;
  silent_since: number;
}
interface ListJobsRequest {
  ended: boolean;
  limit: number;
  all: boolean;
  array_id: string;
  page_token: string;
}
interface ListJobsResponse {
  jobs: Job[];
  next_page_token: string;
  notices: string[];
  simulated: boolean;
}
interface WaitJobRequest {
  job_id: string;
  token: string;
  timeout_seconds: number;
}
interface CancelJobRequest {
  job_id: string;
  grace_seconds?: number;
}
interface HoldJobRequest {
  job_id: string;
  held: boolean;
}
interface JobPriorityRequest {
  job_id: string;
  priority: number;
}
interface JobExplanation {
  job?: Job;
  reason_code: string;
  sentence: string;
  hint: string;
  story: JobStoryEntry[];
  simulated: boolean;
}
interface JobStoryEntry {
  at: number;
  text: string;
}
interface LogsRequest {
  job_id: string;
  follow: boolean;
  tail: number;
  rank: number;
  attempt: number;
}
interface LogChunk {
  data: string;
  stderr: boolean;
}
interface TunnelChunk {
  job_id: string;
  data: string;
  end: boolean;
  rank: number;
  attempt: number;
  stream_id: string;
  received?: string;
  over: boolean;
}
interface DoorRequest {
  job_id: string;
  rank: number;
  attempt: number;
}
interface DoorAnswer {
  host: string;
  lease_id: string;
  node: string;
  here: boolean;
}
interface ReserveRequest {
  job?: SubmitRequest;
  timeout_seconds: number;
}
interface ReserveAnswer {
  job?: Job;
  notes: string[];
  door?: DoorAnswer;
}
interface NodesRequest {
}
interface NodesResponse {
  nodes: PoolNode[];
  pool: string;
  notices: string[];
}
interface PoolNode {
  name: string;
  presence: string;
  heard_at: number;
  silent_since: number;
  drain_reason: string;
  drained_by: string;
  version: string;
  address: string;
  simulated: boolean;
  gpus: PoolGpu[];
  waiting: number;
  running: number;
  enrolled_at: number;
}
interface PoolGpu {
  id: string;
  index: number;
  name: string;
  memory_bytes: string;
  free_memory_bytes: string;
  free_compute_permille: number;
  trouble: string;
  leases: number;
}
interface NodeStatusRequest {
}
interface NodeStatus {
  version: string;
  node: string;
  simulated: boolean;
  engine?: EngineStatus;
  troubles: string[];
  started_at: number;
  caller_uid: string;
  caller_trusted: boolean;
}
interface EngineStatus {
  version: string;
  api_version: string;
  gpu_mechanism: string;
  lease_devices: boolean;
  cgroup_version: number;
  trouble: string;
}
interface PresetsRequest {
}
interface PresetsResponse {
  presets: Preset[];
}
interface Preset {
  name: string;
  gpu: string;
  gpu_memory: string;
  gpu_compute: string;
  class: string;
  time: string;
  description: string;
  priority: string;
  project: string;
  model: string;
}
interface SimulationChange {
  gpu_index: number;
  processes: SimulatedProcess[];
  utilization_ratio?: number;
  trouble?: string;
  hang_seconds?: number;
  unannounced: boolean;
  mig_index?: number;
  xids: number[];
}
interface SimulatedProcess {
  pid: number;
  memory_bytes: string;
  mps_client?: boolean;
  utilization_ratio?: number;
}
interface SimulationChanged {
}
interface DoctorRequest {
}
interface DoctorReport {
  checks: CheckResult[];
  simulated: boolean;
  examined_at: number;
  settings: Setting[];
}
interface CheckResult {
  name: string;
  status: string;
  detail: string;
  fix: string;
  blocked_by: string;
}
interface Setting {
  section: string;
  name: string;
  value: string;
}
interface JoinPoolRequest {
  address: string;
  token: string;
  name: string;
}
interface PoolMembership {
  pool: string;
  node: string;
  address: string;
  expires_at: number;
  realms: string[];
  notes: string[];
}
interface LeavePoolRequest {
}
interface LeftPool {
  pool: string;
  node: string;
}
interface ExplainPolicyRequest {
  create_body: string;
  api_version: string;
  user: string;
}
interface PolicyExplanation {
  passes: boolean;
  findings: PolicyFinding[];
  judged: boolean;
  preset: string;
}
interface PolicyFinding {
  field: string;
  option: string;
  verdict: string;
  asked: string;
  given: string;
  why: string;
  hint: string;
  may_change: boolean;
}
interface ShowPolicyRequest {
}
interface PolicyRules {
  preset: string;
  rules: PolicyRule[];
  judged: boolean;
}
interface PolicyRule {
  name: string;
  value: string;
  origin: string;
  meaning: string;
}
interface GetTrustRequest {
}
interface Trust {
  pool: string;
  anchors: string;
  generation: string;
  now: number;
}
interface SignRequest {
  node: string;
  csr: string;
  token: string;
  now: number;
}
interface SignAnswer {
  certificate: string;
  trust?: Trust;
  node_port: number;
}
interface RenewRequest {
  csr: string;
  now: number;
}
interface JoinTokenRequest {
  node: string;
  valid_seconds: number;
  realms: string[];
}
interface JoinToken {
  token: string;
  id: string;
  expires_at: number;
  node: string;
  used_by: string;
  realms: string[];
  created_at: number;
  used_at: number;
  revoked: boolean;
  made_by: string;
}
interface ListTokensRequest {
}
interface ListJoinTokensResponse {
  tokens: JoinToken[];
}
interface ApiTokenRequest {
  person: string;
  scopes: string[];
  valid_seconds: number;
  description: string;
}
interface ApiToken {
  token: string;
  id: string;
  person: string;
  scopes: string[];
  expires_at: number;
  created_at: number;
  used_at: number;
  description: string;
  revoked: boolean;
  made_by: string;
}
interface ListApiTokensResponse {
  tokens: ApiToken[];
}
interface TokenRef {
  id: string;
  node: string;
}
interface Revoked {
  sentence: string;
}
interface DrainNodeRequest {
  node: string;
  reason: string;
  undrain: boolean;
}
interface ForgetNodeRequest {
  node: string;
  is_off: boolean;
  only_waive: boolean;
}
interface NodeAnswer {
  sentences: string[];
}
interface ForgetCoordinatorRequest {
  name: string;
}
interface CoordinatorForgotten {
  sentence: string;
}
interface RotateCaRequest {
  finish: boolean;
}
interface RotateCaAnswer {
  sentences: string[];
}
interface PoolStatusRequest {
}
interface PoolStatus {
  pool: string;
  version: string;
  epoch: string;
  revision: string;
  phase: string;
  awaited_nodes: string[];
  troubles: string[];
  nodes: number;
  queued: number;
  running: number;
  started_at: number;
  role: string;
  coordinators: PoolCoordinator[];
  store: string;
  store_members: StoreMember[];
  age_seconds: number;
}
interface PoolCoordinator {
  name: string;
  address: string;
  node_address: string;
  leads: boolean;
  version: string;
  started_at: number;
  runs: boolean;
}
interface StoreMember {
  endpoint: string;
  healthy: boolean;
  leads: boolean;
  version: string;
  size_bytes: string;
  problem: string;
}
interface ListProjectsRequest {
}
interface ListProjectsResponse {
  projects: Project[];
  simulated: boolean;
}
interface Quota {
  model: string;
  guaranteed_permille: number;
  limit_permille?: number;
  fixed_permille: number;
  held_permille: number;
}
interface IdlePolicy {
  class: string;
  warn_seconds: number;
  lower_seconds: number;
  action: string;
  action_seconds: number;
}
interface Project {
  name: string;
  users: string[];
  weight: number;
  quotas: Quota[];
  held_permille: number;
  decayed_gpu_seconds: number;
  use_ratio: number;
  origin: string;
  holding: string[];
  waiting: string[];
  idle: IdlePolicy[];
  quiet_idle: IdlePolicy[];
}
interface SetProjectRequest {
  name: string;
  weight?: number;
  users?: UserNames;
  model: string;
  guaranteed: string;
  limit: string;
  fixed: string;
  unset: boolean;
}
interface UserNames {
  names: string[];
}
interface WebLinkRequest {
  network: boolean;
}
interface WebLink {
  code: string;
  valid_seconds: number;
  base_path: string;
  url: string;
}
