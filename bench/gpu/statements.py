"""List what gpushared's promises rest on: each statement in full, and the case that settles it."""

from __future__ import annotations

from dataclasses import dataclass

from bench.gpu import judge
from bench.gpu.judge import Judge, Seen, Verdict, judged


@dataclass(frozen=True, slots=True)
class Statement:
    """``id`` names its row, so that other pages can link to it."""

    id: str
    text: str
    step: str
    case: str
    judge: Judge

    def verdict(self, seen: Seen) -> Verdict:
        return judged((self.step, self.case), self.judge, seen)


def _covers(call: str, method: str) -> Statement:
    return Statement(
        f"limit-covers-{method}",
        f"A limit in the client's environment covers memory taken by {call}.",
        "G2",
        f"{method}-client",
        judge.capped,
    )


def _cgroup_covers(call: str, method: str) -> Statement:
    return Statement(
        f"cgroup-covers-{method}",
        f"With driver r615 a cgroup's hard limit covers memory taken by {call}.",
        "G8",
        f"cgroup-{method}",
        judge.capped,
    )


STATEMENTS: tuple[Statement, ...] = (
    # --- limits ---
    Statement(
        "limit-of-lease",
        "A memory limit in a client's environment, by device ordinal, is kept by the CUDA library "
        "of that client.",
        "G1",
        "by-client",
        judge.capped,
    ),
    Statement(
        "limit-of-lease-by-uuid",
        "A memory limit in a client's environment is also kept when it names the GPU by its UUID.",
        "G1",
        "by-client-uuid",
        judge.capped,
    ),
    Statement(
        "limit-of-daemon",
        "A memory limit set in the control daemon by device ordinal is kept for every client of its servers.",
        "G1",
        "by-ordinal",
        judge.capped,
    ),
    Statement(
        "limit-of-daemon-by-uuid",
        "A memory limit set in the control daemon is also kept when it names the GPU by its UUID.",
        "G1",
        "by-uuid",
        judge.capped,
    ),
    Statement(
        "limit-in-daemon-environment",
        "A memory limit that stands only in the control daemon's environment is kept too.",
        "G1",
        "in-daemon-environment",
        judge.capped,
    ),
    Statement(
        "limit-in-mib",
        "A limit of 1536 MiB is applied as such, although the control daemon shows it as 1 GiB.",
        "G1",
        "odd-size",
        judge.applied_exactly,
    ),
    Statement(
        "limit-raised-later",
        "Raising a server's limit changes it for clients that connect afterwards, not for those that run.",
        "G1",
        "raised",
        judge.raised_for_new_clients_only,
    ),
    Statement(
        "limit-shows-as-free",
        "Under a limit CUDA reports as free memory what the limit leaves, and as total memory the whole GPU.",
        "G1",
        "by-ordinal",
        judge.sees_the_limit_as_free,
    ),
    Statement(
        "share-of-multiprocessors",
        "A client with 25 % of the threads sees a quarter of the GPU's multiprocessors.",
        "G1",
        "by-client",
        judge.quarter_of_multiprocessors,
    ),
    Statement(
        "share-only-lowers",
        "A client cannot have a larger percentage than its daemon allows.",
        "G1",
        "percentage-above-daemon",
        judge.quarter_of_multiprocessors,
    ),
    _covers("cuMemAlloc (cudaMalloc)", "malloc"),
    _covers("cuMemAllocAsync (cudaMallocAsync)", "async"),
    _covers("cuMemCreate (virtual memory management)", "vmm"),
    _covers("cuMemAllocManaged (cudaMallocManaged) and used on the GPU", "managed"),
    _covers("opening another process's memory (CUDA IPC)", "ipc"),
    Statement(
        "limit-covers-torch-expandable",
        "A limit of the daemon covers PyTorch's allocator with expandable segments.",
        "G2",
        "torch-expandable",
        judge.capped,
    ),
    Statement(
        "limit-is-per-process",
        "The limit holds for each process: two processes of one container may use it twice.",
        "G2",
        "two-processes",
        judge.more_than_one_limit,
    ),
    Statement(
        "client-may-not-raise",
        "A client whose environment asks for more than its daemon's limit stays within the daemon's.",
        "G2",
        "env-above-server",
        judge.capped,
    ),
    Statement(
        "absent-gpu-sheds-limits",
        "A client whose limits name a GPU that it cannot see loses every memory limit, its daemon's too.",
        "G2",
        "env-with-absent-gpu",
        judge.uncapped,
    ),
    Statement(
        "leaving-mps",
        "A program that unsets CUDA_MPS_PIPE_DIRECTORY runs outside MPS, without a limit, in the "
        "default compute mode.",
        "G2",
        "without-mps",
        judge.uncapped,
    ),
    Statement(
        "exclusive-mode-closes-the-door",
        "In compute mode EXCLUSIVE_PROCESS a program outside MPS gets no GPU at all.",
        "G2",
        "without-mps-exclusive",
        judge.capped,
    ),
    # --- who is seen ---
    Statement(
        "memory-by-process",
        "NVML lists each MPS client under its own host PID, with the device memory that it took.",
        "G3",
        "memory",
        judge.listed_by_client,
    ),
    Statement(
        "memory-by-adapter",
        "gpushared's NVML adapter attributes each MPS client's device memory to the client's own host PID.",
        "G3",
        "memory",
        judge.listed_by_adapter,
    ),
    Statement(
        "managed-memory-by-process",
        "NVML attributes managed memory that lies on the GPU to the process that uses it.",
        "G3",
        "managed-memory",
        judge.listed_by_client,
    ),
    Statement(
        "work-by-process",
        "NVML's process utilisation tells MPS clients that compute from those that do not.",
        "G3",
        "utilisation",
        judge.busy_client_seen,
    ),
    Statement(
        "hard-link-is-enough",
        "A hard link of the socket `control` is all that a client needs of the daemon's directory.",
        "G3",
        "hard-link",
        judge.was_a_client,
    ),
    Statement(
        "no-shared-memory-needed",
        "A client needs neither the host's IPC namespace nor its /dev/shm.",
        "G3",
        "empty-shm",
        judge.was_a_client,
    ),
    Statement(
        "contained-client",
        "A client in PID and IPC namespaces of its own, with an empty /dev/shm and only a hard "
        "link of `control`, is "
        "served and held to its limits.",
        "G3",
        "contained",
        judge.was_a_client,
    ),
    # --- other users ---
    Statement(
        "multiuser-flag",
        "The control daemon of this driver starts with -multiuser-server.",
        "G1",
        "multiuser",
        judge.flag_is_known,
    ),
    Statement(
        "users-wait",
        "Without -multiuser-server a second user's clients wait until the first user's have ended.",
        "G4",
        "second-user",
        judge.waited,
    ),
    Statement(
        "users-together",
        "With -multiuser-server clients of two users are served at the same time.",
        "G4",
        "second-user-multiuser",
        judge.served_together,
    ),
    Statement(
        "user-raises-own-limit",
        "A user can raise the memory limit of a server that runs under his own uid, through the "
        "public socket.",
        "G4",
        "own-server",
        judge.limit_was_raised,
    ),
    Statement(
        "root-meddles-by-public-socket",
        "Root with only the public socket, as in a container, can change or end a user's server.",
        "G4",
        "root-by-public-socket",
        judge.something_was_changed,
    ),
    Statement(
        "multiuser-server-is-safe",
        "With -multiuser-server a user can neither change the server's limits nor end it or its clients.",
        "G4",
        "multiuser",
        judge.nothing_was_changed,
    ),
    # --- faults ---
    Statement(
        "fault-hits-all-clients",
        "A fatal fault of one client is reported to all clients of the same MPS server.",
        "G5",
        "fault",
        judge.neighbour_was_hit,
    ),
    Statement(
        "fault-stays-with-its-server",
        "Such a fault does not reach clients of another control daemon, nor programs without MPS, "
        "on the same GPU.",
        "G5",
        "fault",
        judge.others_were_spared,
    ),
    Statement(
        "fault-heals",
        "After such a fault, and with all affected clients gone, new clients are served without "
        "anybody's doing.",
        "G5",
        "fault",
        judge.healed,
    ),
    Statement(
        "terminate-then-kill",
        "A busy client that is terminated through the control daemon and then killed does its "
        "neighbours no harm.",
        "G5",
        "terminated-then-killed",
        judge.neighbour_lived,
    ),
    Statement(
        "kill-without-terminate",
        "A busy client that is killed without that does its neighbours no harm either.",
        "G5",
        "killed-busy",
        judge.neighbour_lived,
    ),
    Statement(
        "held-socket-blocks",
        "Whoever holds a connection to the public socket and says nothing keeps new clients waiting.",
        "G5",
        "control-held-open",
        judge.new_client_waited,
    ),
    Statement(
        "daemon-may-die",
        "Running clients go on when the control daemon is killed, and a new daemon in its place "
        "serves new ones.",
        "G5",
        "daemon-killed",
        judge.daemon_replaced,
    ),
    # --- cost ---
    Statement(
        "mps-reserve",
        "An MPS server itself holds at most the 300 MiB of device memory that are kept back for "
        "it on each GPU.",
        "G6",
        "idle-memory",
        judge.server_within_reserve,
    ),
    Statement(
        "clients-per-server",
        "One server takes at least 48 clients.",
        "G6",
        "most-clients",
        judge.takes_48_clients,
    ),
    Statement(
        "mps-beats-time-slicing",
        "Four clients of one server do more small work together than four processes without MPS.",
        "G6",
        "4-one-server",
        judge.faster_than("4-plain"),
    ),
    Statement(
        "one-server-beats-several",
        "Four clients of one server do more small work together than four clients with a server each.",
        "G6",
        "4-one-server",
        judge.faster_than("4-servers"),
    ),
    Statement(
        "overhead-of-gpushared",
        "With gpushared's settings the aggregate throughput is at least 0.98 of that of MPS set up by hand.",
        "sharing",
        "ratios",
        judge.ratio_at_least("gpushared_to_by_hand", 0.98),
    ),
    Statement(
        "sharing-gains",
        "With gpushared's settings the aggregate throughput is at least that of plain time-slicing.",
        "sharing",
        "ratios",
        judge.ratio_at_least("gpushared_to_time_slicing", 1.0),
    ),
    # --- pausing ---
    Statement(
        "checkpoint-frees-memory",
        "A checkpoint takes all of a process's memory off the GPU, and the process goes on after "
        "its restore.",
        "G7",
        "8-gib",
        judge.paused_and_resumed,
    ),
    Statement(
        "checkpoint-of-mps-client",
        "An MPS client can be paused by a checkpoint.",
        "G7",
        "mps-client",
        judge.paused_and_resumed,
    ),
    Statement(
        "checkpoint-of-managed-memory",
        "A process with managed memory can be paused by a checkpoint.",
        "G7",
        "managed",
        judge.paused_and_resumed,
    ),
    Statement(
        "checkpoint-waits-for-room",
        "A restore fails while others hold the memory, and works once they have given it back.",
        "G7",
        "filled-meanwhile",
        judge.came_back_after_full,
    ),
    # --- driver r615 ---
    _cgroup_covers("cuMemAlloc (cudaMalloc)", "malloc"),
    _cgroup_covers("cuMemAllocAsync (cudaMallocAsync)", "async"),
    _cgroup_covers("cuMemCreate (virtual memory management)", "vmm"),
    Statement(
        "cgroup-misses-managed",
        "With driver r615 managed memory is not held by a cgroup's hard limit.",
        "G8",
        "cgroup-managed",
        judge.uncapped,
    ),
    Statement(
        "cgroup-limit-is-shared",
        "With driver r615 all processes of a cgroup share its limit.",
        "G8",
        "cgroup-two-processes",
        judge.within_one_limit,
    ),
)
