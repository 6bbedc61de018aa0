"""Numbers of the CUDA kernel's structure that the host needs, too. The kernel's constants are generated from them."""

from __future__ import annotations

from monolane.program.stage import PASS_ROWS

# Warps of a thread block: consumers multiply, attend and sample; the others are the producer, the watchdog, the
# prefetch warp and one that is idle, because registers move between warpgroups of four.
CONSUMER_WARPS, OTHER_WARPS = 8, 4
WARPGROUP_WARPS = 4  # warps that share a chunk
WARPGROUPS = CONSUMER_WARPS // WARPGROUP_WARPS  # of consumers, which take chunks in turn
THREADS = 32 * (CONSUMER_WARPS + OTHER_WARPS)

MMA_COLS = 8  # columns of an MMA's product, which are the rows of a tile
FRAGMENT_BYTES = 512  # 8 rows of 32 k, or 4 rows of 64 k: what a warp loads at once, 16 bytes a thread
FRAGMENT_COLS = 64  # the most columns of a fragment; rows of activations are padded to whole fragments
DECODE_BATCH = 32  # tiles whose sums are kept in shared memory in a decode pass

# The KV cache is kept in pages. Attention divides the pages that a row sees into splits of SPLIT_BYTES of keys and
# values, at most SPLIT_PAGES pages, and into no more splits than there are workers for: then splits have more.
PAGE_TOKENS = 16
SPLIT_PAGES, MAX_SPLITS = 16, 64
SPLIT_BYTES = 64 << 10
# Splits that the projection after attention merges while it loads its input, if they have no more pages in all than
# this, and it reads no more words.
FUSED_SPLITS, FUSED_PAGES, FUSED_WORDS = 5, 48, 20480

# Where the owners of the residual stream attend (stream_owners.py): all consumer warps but one hold pages of the cache
# in so many registers of a thread.
AT_ONCE_WARPS, AT_ONCE_REGISTERS = CONSUMER_WARPS - 1, 128
AT_ONCE_QUERIES = 2  # of a KV head, at most

TAG_BITS = 16  # of a tagged word of activations: its lower half
LINE_BYTES = 128  # of L2

# Sampling: buckets of a histogram, and the number of histograms, which are used in turn.
BUCKET_BITS, HISTOGRAMS = 8, 3
BUCKETS = 1 << BUCKET_BITS
TABLE_ENTRIES = 256  # of each of the three tables of sampling


def structure_constants() -> dict[str, int]:
    """C++ name to value."""
    return {
        "kConsumerWarps": CONSUMER_WARPS,
        "kWarpgroupWarps": WARPGROUP_WARPS,
        "kWarpgroups": WARPGROUPS,
        "kThreads": THREADS,
        "kPassRows": PASS_ROWS,
        "kMmaCols": MMA_COLS,
        "kFragmentBytes": FRAGMENT_BYTES,
        "kDecodeBatch": DECODE_BATCH,
        "kPageTokens": PAGE_TOKENS,
        "kSplitBytes": SPLIT_BYTES,
        "kAtOnceWarps": AT_ONCE_WARPS,
        "kAtOnceQueries": AT_ONCE_QUERIES,
        "kTagBits": TAG_BITS,
        "kLineBytes": LINE_BYTES,
        "kBucketBits": BUCKET_BITS,
        "kBuckets": BUCKETS,
        "kHistograms": HISTOGRAMS,
        "kTableEntries": TABLE_ENTRIES,
    }
