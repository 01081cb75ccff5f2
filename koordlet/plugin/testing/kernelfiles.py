"""Texts of kernel files as Linux 6.18 writes them, with the numbers left open."""

PAGE = 4096  # bytes
HZ = 100  # clock ticks per second in /proc/stat
UNLIMITED_V1 = 9223372036854771712  # memory.limit_in_bytes without a limit

V1_MEMORY_STAT = """\
cache {file}
rss {anon}
rss_huge 0
shmem 0
mapped_file 0
dirty 0
writeback 0
workingset_refault_anon 0
workingset_refault_file 0
swap 0
swapcached 0
pgpgin 42958
pgpgout 37285
pgfault 52461
pgmajfault 0
inactive_anon {anon}
active_anon 0
inactive_file {file}
active_file 0
unevictable 0
hierarchical_memory_limit {limit}
hierarchical_memsw_limit {limit}
total_cache {file}
total_rss {anon}
total_rss_huge 0
total_shmem 0
total_mapped_file 0
total_dirty 0
total_writeback 0
total_workingset_refault_anon 0
total_workingset_refault_file 0
total_swap 0
total_swapcached 0
total_pgpgin 42958
total_pgpgout 37285
total_pgfault 52461
total_pgmajfault 0
total_inactive_anon {anon}
total_active_anon 0
total_inactive_file {file}
total_active_file 0
total_unevictable 0
"""

V2_MEMORY_STAT = """\
anon {anon}
file {file}
kernel 0
kernel_stack 0
pagetables 0
sec_pagetables 0
percpu 0
sock 0
vmalloc 0
shmem 0
file_mapped 0
file_dirty 0
file_writeback 0
swapcached 0
anon_thp 0
file_thp 0
shmem_thp 0
inactive_anon {anon}
active_anon 0
inactive_file {file}
active_file 0
unevictable 0
slab_reclaimable 0
slab_unreclaimable 0
slab 0
workingset_refault_anon 0
workingset_refault_file 0
workingset_activate_anon 0
workingset_activate_file 0
workingset_restore_anon 0
workingset_restore_file 0
workingset_nodereclaim 0
pgscan 0
pgsteal 0
pgfault 52461
pgmajfault 0
"""

V2_CPU_STAT = """\
usage_usec {usage}
user_usec {usage}
system_usec 0
nice_usec 0
core_sched.force_idle_usec 0
nr_periods {periods}
nr_throttled {throttled}
throttled_usec {throttled_us}
nr_bursts 0
burst_usec 0
"""

V1_CPU_STAT = """\
nr_periods {periods}
nr_throttled {throttled}
throttled_time {throttled_ns}
nr_bursts 0
burst_time 0
"""

MEMINFO = """\
MemTotal:       {total} kB
MemFree:        {free} kB
MemAvailable:   {available} kB
Buffers:            1784 kB
Cached:           {file} kB
SwapCached:            0 kB
Active:            61816 kB
Inactive:          59008 kB
Active(anon):       1568 kB
Inactive(anon):    13276 kB
Active(file):          0 kB
Inactive(file):    {file} kB
Unevictable:       21556 kB
Mlocked:           20596 kB
SwapTotal:             0 kB
SwapFree:              0 kB
Dirty:               664 kB
Writeback:             0 kB
AnonPages:         27544 kB
Mapped:            10852 kB
Shmem:              8856 kB
KReclaimable:          0 kB
Slab:              53712 kB
SReclaimable:          0 kB
SUnreclaim:        53712 kB
HugePages_Total:       0
HugePages_Free:        0
HugePages_Rsvd:        0
HugePages_Surp:        0
Hugepagesize:       2048 kB
"""

NUMA_MEMINFO = """\
Node {node} MemTotal:        {total} kB
Node {node} MemFree:         {free} kB
Node {node} MemUsed:         {used} kB
Node {node} Active(file):          0 kB
Node {node} Inactive(file):    {file} kB
Node {node} SReclaimable:          0 kB
Node {node} SUnreclaim:        53712 kB
Node {node} HugePages_Total:     0
Node {node} HugePages_Free:      0
Node {node} HugePages_Surp:      0
"""

CPUINFO = """\
processor\t: {cpu}
vendor_id\t: AuthenticAMD
cpu family\t: 26
model\t\t: 2
model name\t: AMD EPYC
stepping\t: 1
physical id\t: 0
siblings\t: {cpus}
core id\t\t: {cpu}
cpu cores\t: {cpus}

"""

NET_DEV = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo \
colls carrier compressed
"""


def pressure(some: float, full: float | None, some_total: int, full_total: int) -> str:
    """A PSI file: averages in percent (the same over all windows), totals in microseconds."""
    lines = [f"some avg10={some:.2f} avg60={some:.2f} avg300={some:.2f} total={some_total}\n"]
    if full is not None:
        lines.append(
            f"full avg10={full:.2f} avg60={full:.2f} avg300={full:.2f} total={full_total}\n"
        )
    return "".join(lines)
