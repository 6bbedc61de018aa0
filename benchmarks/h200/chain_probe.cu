// What the layers of a small Laneformer could take if a lane were a cluster: the chain of a layer alone, as lean as it can be, with made-up weights and no answer worth reading.
//
// A lane of laneformer-135m has 576 columns, one head of 64 dimensions and 208 rows of a gate; 16 SMs share it. Results go to the shared memory of all 16 by st.async, and whoever needs them waits
// at an mbarrier: four hand-offs a layer. There is none between attention and o, because every SM attends to the whole context by itself: keys and values come once for all 16, by multicast.
// Weights stream from HBM, two layers ahead at most, and are in registers before the input comes. Left out: rotary embeddings, the newest key and value, what comes from other lanes, and the head.
// Beside it the same chain with hand-offs through global memory, as the kernel has them: tagged words that all threads poll and leave in shared memory.
//
// Seen (7 lanes, weights streamed): 4.92 us a layer at a context of 128, 5.27 at 256, and 6.57 at 256 with hand-offs through global memory. At 128 the cycles of a layer are 1,269 of qkv, 2,755 of
// attention and o, 3,206 of the gate and 1,016 of down. With weights that are there already 4.80 at 128, and 6.31 through global memory.
//
//     nvcc -O3 -std=c++17 -arch=sm_90a chain_probe.cu -o chain_probe && ./chain_probe
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(x)                                                      \
  do {                                                                \
    cudaError_t error = (x);                                          \
    if (error != cudaSuccess) {                                       \
      printf("%s in line %d\n", cudaGetErrorString(error), __LINE__); \
      exit(1);                                                        \
    }                                                                 \
  } while (0)

constexpr int kSms = 16, kWarps = 8, kConsumers = kWarps * 32, kThreads = kConsumers + 32, kLayers = 30, kTokens = 40, kWarmUp = 10;
constexpr int kHidden = 576, kQkv = 192, kHeadDim = 64, kGated = 224, kFragment = 512, kFragmentCols = 32;
constexpr int kRows = kHidden / kSms, kQkvRows = kQkv / kSms, kGateRows = kGated / kSms;  // of an SM: 36 of o and of down, 12 of qkv, 14 of the gate (13, padded)
constexpr int kWide = kHidden / kFragmentCols, kHead = kHeadDim / kFragmentCols, kDeep = kGated / kFragmentCols;  // fragments of a tile of 8 rows
constexpr int kQkvTiles = 2, kGateTiles = 4, kTiles = 5;
enum { kQkvStage, kO, kGate, kDown, kStages };
__host__ __device__ constexpr int bytes_of(int stage) { return (stage == kQkvStage ? kQkvTiles * kWide : stage == kO ? kTiles * kHead : stage == kGate ? kGateTiles * kWide : kTiles * kDeep) * kFragment; }
__host__ __device__ constexpr int offset_of(int stage) { return stage == 0 ? 0 : offset_of(stage - 1) + bytes_of(stage - 1); }
__host__ __device__ constexpr int input_bytes(int stage) { return (stage == kO ? kQkv : stage == kDown ? kGated : kHidden) * 4; }
constexpr int kLayerBytes = offset_of(kStages);

struct Shared {
  float in_qkv[kHidden], in_attend[kQkv], in_gate[kHidden], in_down[kGated];
  float sums[kWarps][kGateTiles * 8], squares[kWarps];
  float mixed[kWarps][kHeadDim], most[kWarps], total[kWarps];
  __nv_bfloat16 attended[kHeadDim];
  uint64_t full[2][kStages], empty[2][kStages], cache_full, cache_empty, input[kStages];
};
constexpr int kSharedStruct = (sizeof(Shared) + 1023) / 1024 * 1024;

__device__ __forceinline__ uint32_t address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }
__device__ __forceinline__ uint32_t remote(uint32_t at, uint32_t rank) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
  return there;
}
__device__ __forceinline__ void init(uint64_t* barrier, int count) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(barrier)), "r"(count)); }
__device__ __forceinline__ void expect(uint64_t* barrier, uint32_t bytes) { asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(barrier)), "r"(bytes) : "memory"); }
__device__ __forceinline__ void arrive(uint64_t* barrier) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address(barrier)) : "memory"); }
__device__ __forceinline__ void arrive_at(uint64_t* barrier, uint32_t rank) { asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(remote(address(barrier), rank)) : "memory"); }
__device__ __forceinline__ void await(uint64_t* barrier, uint32_t parity) {
  asm volatile("{\n.reg .pred P;\nAGAIN:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 P, [%0], %1;\n@!P bra AGAIN;\n}" ::"r"(address(barrier)), "r"(parity) : "memory");
}
__device__ __forceinline__ void copy(void* to, const void* from, uint32_t bytes, uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(address(to)), "l"(from), "r"(bytes), "r"(address(barrier)) : "memory");
}
__device__ __forceinline__ void copy_to_all(void* to, const void* from, uint32_t bytes, uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(address(to)), "l"(from), "r"(bytes), "r"(address(barrier)), "h"(static_cast<uint16_t>(0xffff)) : "memory");
}
__device__ __forceinline__ void send_shared(const float* to, uint64_t* barrier, uint32_t rank, float one, float two) {
  const uint64_t value = static_cast<uint64_t>(__float_as_uint(two)) << 32 | __float_as_uint(one);
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(remote(address(to), rank)), "l"(value), "r"(remote(address(barrier), rank)) : "memory");
}
__device__ __forceinline__ void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ uint32_t pack(float low, float high) {
  uint32_t both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}
__device__ __forceinline__ void sync_consumers() { asm volatile("bar.sync 1, %0;" ::"n"(kConsumers) : "memory"); }
__device__ __forceinline__ float power_of_2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The A operand of a fragment: 8 columns of this thread, of an input in fp32. Its squares are added to `squares`.
__device__ __forceinline__ uint4 operand(const float* from, float& squares) {
  const float4 a = *reinterpret_cast<const float4*>(from), b = *reinterpret_cast<const float4*>(from + 4);
  squares += a.x * a.x + a.y * a.y + a.z * a.z + a.w * a.w + b.x * b.x + b.y * b.y + b.z * b.z + b.w * b.w;
  return {pack(a.x, a.y), pack(a.z, a.w), pack(b.x, b.y), pack(b.z, b.w)};
}

template <bool kGlobal>
struct Consumer {
  Shared& s;
  uint32_t* words;      // of this lane: a tagged word for each float of the inputs in Shared
  const char* weights;  // of both layers that are in shared memory
  const char* cache;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const uint32_t rank;
  uint32_t n = 0;               // layers so far
  float residual[2] = {0.5f, 0.25f};  // of the rows of this thread: tile `warp`, rows 2t and 2t + 1

  __device__ __forceinline__ const uint4* fragment(int stage, int number) const { return reinterpret_cast<const uint4*>(weights + n % 2 * kLayerBytes + offset_of(stage) + number * kFragment) + lane; }
  __device__ __forceinline__ void await_weights(int stage) const { await(&s.full[n % 2][stage], n / 2 % 2); }
  __device__ __forceinline__ void release_weights(int stage) const {
    __syncwarp();
    if (lane == 0) arrive(&s.empty[n % 2][stage]);
  }
  // Two neighbouring values for the SM `to`, or for all of them if kGlobal: then only what is for the first SM is sent.
  __device__ __forceinline__ void send(float* place, int stage, uint32_t to, float one, float two, uint32_t tag) const {
    if constexpr (!kGlobal) return send_shared(place, &s.input[stage], to, one, two);
    if (to) return;
    const uint32_t pair = pack(one, two);
    asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};" ::"l"(words + (place - s.in_qkv)), "r"(pair << 16 | tag), "r"((pair & 0xffff0000u) | tag) : "memory");
  }
  // Waits for a stage's input and prepares its barrier for the next layer.
  __device__ __forceinline__ void await_input(int stage, float* input) const {
    if constexpr (kGlobal) {
      const int i = threadIdx.x * 4, tag = n + 1;
      if (i < input_bytes(stage) / 4) {
        uint4 v;
        do asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(words + (input - s.in_qkv) + i) : "memory");
        while (((v.x ^ tag) | (v.y ^ tag) | (v.z ^ tag) | (v.w ^ tag)) & 0xffff);
        *reinterpret_cast<uint4*>(input + i) = {v.x & 0xffff0000u, v.y & 0xffff0000u, v.z & 0xffff0000u, v.w & 0xffff0000u};
      }
      return sync_consumers();
    }
    await(&s.input[stage], n % 2);
    if (threadIdx.x == 0) expect(&s.input[stage], input_bytes(stage));
  }

  // qkv and gate: the warps share the fragments of every tile; their sums meet in shared memory. Returns the norm's factor.
  template <int kCount>
  __device__ __forceinline__ float wide(int stage, float* input) {
    constexpr int kShare = (kWide + kWarps - 1) / kWarps;
    uint4 w[kCount][kShare];
    await_weights(stage);
#pragma unroll
    for (int i = 0; i < kCount; i++)
#pragma unroll
      for (int j = 0; j < kShare; j++) w[i][j] = warp + j * kWarps < kWide ? *fragment(stage, i * kWide + warp + j * kWarps) : uint4{};
    release_weights(stage);
    await_input(stage, input);
    float squares = 0, c[kCount][4] = {}, d[kCount][4] = {};
#pragma unroll
    for (int j = 0; j < kShare; j++) {
      if (warp + j * kWarps >= kWide) break;
      const uint4 a = operand(input + (warp + j * kWarps) * kFragmentCols + 8 * t, squares);
#pragma unroll
      for (int i = 0; i < kCount; i++) {
        mma(c[i], a.x, a.y, a.z, a.w, w[i][j].x, w[i][j].y);
        mma(d[i], a.x, a.y, a.z, a.w, w[i][j].z, w[i][j].w);
      }
    }
    squares += __shfl_xor_sync(~0u, squares, 1);
    squares += __shfl_xor_sync(~0u, squares, 2);
    if (g == 0) {
#pragma unroll
      for (int i = 0; i < kCount; i++) *reinterpret_cast<float2*>(&s.sums[warp][i * 8 + 2 * t]) = {c[i][0] + d[i][2], c[i][1] + d[i][3]};
      if (t == 0) s.squares[warp] = squares;
    }
    sync_consumers();
    float total = 0;
#pragma unroll
    for (int i = 0; i < kWarps; i++) total += s.squares[i];
    return rsqrtf(total / kHidden + 1e-5f);
  }
  __device__ __forceinline__ void qkv() {
    const float scale = wide<kQkvTiles>(kQkvStage, s.in_qkv);
    const int pair = threadIdx.x % (kQkvRows / 2), to = threadIdx.x / (kQkvRows / 2);
    if (to >= kSms) return;
    float2 sum = {};
#pragma unroll
    for (int i = 0; i < kWarps; i++) sum.x += s.sums[i][2 * pair], sum.y += s.sums[i][2 * pair + 1];
    send(&s.in_attend[rank * kQkvRows + 2 * pair], kO, to, sum.x * scale, sum.y * scale, n + 1);
  }
  __device__ __forceinline__ void gate() {
    const float scale = wide<kGateTiles>(kGate, s.in_gate);
    const int pair = threadIdx.x % (kGateRows / 2), to = threadIdx.x / (kGateRows / 2);
    if (to >= kSms) return;
    float4 sum = {};
#pragma unroll
    for (int i = 0; i < kWarps; i++) {
      const float4 of = *reinterpret_cast<const float4*>(&s.sums[i][4 * pair]);
      sum.x += of.x, sum.y += of.y, sum.z += of.z, sum.w += of.w;
    }
    const auto gated = [&](float a, float b) { return a * scale / (1 + power_of_2(-1.4427f * a * scale)) * b * scale; };
    send(&s.in_down[rank * kGateRows + 2 * pair], kDown, to, gated(sum.x, sum.y), gated(sum.z, sum.w), n + 1);
  }

  // Adds a tile's sums to the residual stream, of which the next stage gets the new values. All threads with the same t have the same rows: each sends them to two SMs.
  __device__ __forceinline__ void add(const float (&c)[4], const float (&d)[4], float* input, int stage, uint32_t tag) {
    residual[0] = residual[0] * 0.5f + c[0] + d[2], residual[1] = residual[1] * 0.5f + c[1] + d[3];
    if (warp * 8 + 2 * t >= kRows) return;
    float* to = input + rank * kRows + warp * 8 + 2 * t;
    send(to, stage, 2 * g, residual[0], residual[1], tag);
    send(to, stage, 2 * g + 1, residual[0], residual[1], tag);
  }

  // Attention over kPositions, a part of them for each warp, and o.
  template <int kPositions>
  __device__ __forceinline__ void attend() {
    constexpr int kColumns = kPositions / kWarps / 8, kSteps = kPositions / kWarps / 16;  // of 8 keys; of 16 values
    uint4 keys[kColumns][kHead], o[kHead];
    uint2 values[kSteps][kHeadDim / 8];
    await(&s.cache_full, n % 2);
    const uint4* from = reinterpret_cast<const uint4*>(cache + warp * (kPositions / kWarps) * kHeadDim * 4) + lane;  // keys, then values
#pragma unroll
    for (int i = 0; i < kColumns; i++)
#pragma unroll
      for (int j = 0; j < kHead; j++) keys[i][j] = from[(i * kHead + j) * 32];
    const uint2* behind = reinterpret_cast<const uint2*>(from - lane + kColumns * kHead * 32) + lane;
#pragma unroll
    for (int i = 0; i < kSteps; i++)
#pragma unroll
      for (int j = 0; j < kHeadDim / 8; j++) values[i][j] = behind[(i * (kHeadDim / 8) + j) * 32];
    __syncwarp();
    if (lane < kSms) arrive_at(&s.cache_empty, lane);
    await_weights(kO);
#pragma unroll
    for (int j = 0; j < kHead; j++) o[j] = warp < kTiles ? *fragment(kO, warp * kHead + j) : uint4{};
    release_weights(kO);
    await_input(kO, s.in_attend);
    float ignored = 0, scores[kColumns][4] = {};
#pragma unroll
    for (int j = 0; j < kHead; j++) {
      const uint4 q = operand(s.in_attend + j * kFragmentCols + 8 * t, ignored);
#pragma unroll
      for (int i = 0; i < kColumns; i++) {
        mma(scores[i], q.x, 0, q.y, 0, keys[i][j].x, keys[i][j].y);
        mma(scores[i], q.z, 0, q.w, 0, keys[i][j].z, keys[i][j].w);
      }
    }
    float most = -1e30f, total = 0;
#pragma unroll
    for (int i = 0; i < kColumns; i++) most = fmaxf(most, fmaxf(scores[i][0], scores[i][1]));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
#pragma unroll
    for (int i = 0; i < kColumns; i++) {
      scores[i][0] = power_of_2(scores[i][0] - most), scores[i][1] = power_of_2(scores[i][1] - most);
      total += scores[i][0] + scores[i][1];
    }
    float mixed[kHeadDim / 8][4] = {};
#pragma unroll
    for (int i = 0; i < kSteps; i++)
#pragma unroll
      for (int j = 0; j < kHeadDim / 8; j++)
        mma(mixed[j], pack(scores[2 * i][0], scores[2 * i][1]), 0, pack(scores[2 * i + 1][0], scores[2 * i + 1][1]), 0, values[i][j].x, values[i][j].y);
    total += __shfl_xor_sync(~0u, total, 1);
    total += __shfl_xor_sync(~0u, total, 2);
    if (g == 0) {
#pragma unroll
      for (int j = 0; j < kHeadDim / 8; j++) *reinterpret_cast<float2*>(&s.mixed[warp][j * 8 + 2 * t]) = {mixed[j][0], mixed[j][1]};
      if (t == 0) s.most[warp] = most, s.total[warp] = total;
    }
    sync_consumers();
    if (threadIdx.x < kHeadDim) {
      float highest = -1e30f, sum = 0, value = 0;
#pragma unroll
      for (int i = 0; i < kWarps; i++) highest = fmaxf(highest, s.most[i]);
#pragma unroll
      for (int i = 0; i < kWarps; i++) {
        const float factor = power_of_2(s.most[i] - highest);
        sum += factor * s.total[i], value += factor * s.mixed[i][threadIdx.x];
      }
      s.attended[threadIdx.x] = __float2bfloat16(value / sum);
    }
    sync_consumers();
    if (warp >= kTiles) return;
    float c[4] = {}, d[4] = {};
#pragma unroll
    for (int j = 0; j < kHead; j++) {
      const uint4 a = *reinterpret_cast<const uint4*>(s.attended + j * kFragmentCols + 8 * t);
      mma(c, a.x, a.y, a.z, a.w, o[j].x, o[j].y);
      mma(d, a.x, a.y, a.z, a.w, o[j].z, o[j].w);
    }
    add(c, d, s.in_gate, kGate, n + 1);
  }

  // A warp has a tile of down with all its columns, so that no sums meet.
  __device__ __forceinline__ void down() {
    uint4 w[kDeep];
    await_weights(kDown);
#pragma unroll
    for (int j = 0; j < kDeep; j++) w[j] = warp < kTiles ? *fragment(kDown, warp * kDeep + j) : uint4{};
    release_weights(kDown);
    await_input(kDown, s.in_down);
    if (warp >= kTiles) return;
    float ignored = 0, c[2][4] = {}, d[2][4] = {};
#pragma unroll
    for (int j = 0; j < kDeep; j++) {
      const uint4 a = operand(s.in_down + j * kFragmentCols + 8 * t, ignored);
      mma(c[j % 2], a.x, a.y, a.z, a.w, w[j].x, w[j].y);
      mma(d[j % 2], a.x, a.y, a.z, a.w, w[j].z, w[j].w);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) c[0][i] += c[1][i], d[0][i] += d[1][i];
    add(c[0], d[0], s.in_qkv, kQkvStage, n + 2);
  }
};

// kStreams: weights are streamed for every layer; else those of the first two layers stay.
template <int kPositions, bool kStreams, bool kGlobal>
__global__ void __launch_bounds__(kThreads, 1) chain(const char* tape, const char* cache, uint32_t* words, float* took, float* sink) {
  constexpr int kCacheBytes = kPositions * kHeadDim * 4, kSlice = kCacheBytes / kSms;
  extern __shared__ __align__(1024) char memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  char *weights = memory + kSharedStruct, *cached = weights + 2 * kLayerBytes;
  uint32_t rank, lane;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(lane));
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; i++)
      for (int j = 0; j < kStages; j++) init(&s.full[i][j], 1), init(&s.empty[i][j], kWarps);
    init(&s.cache_full, 1), init(&s.cache_empty, kWarps * kSms);
    for (int j = 0; j < kStages; j++) init(&s.input[j], 1);
    asm volatile("fence.mbarrier_init.release.cluster;");
    for (int j = 0; j < kStages; j++) expect(&s.input[j], input_bytes(j));
  }
  __syncthreads();
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
  const uint32_t count = kTokens * kLayers;
  if (threadIdx.x == kConsumers) {
    const char* own = tape + static_cast<size_t>(blockIdx.x) * kLayers * kLayerBytes;
    for (uint32_t n = 0; n < count; n++) {
      const uint32_t layer = n % kLayers;
#pragma unroll
      for (int stage = 0; stage < kStages; stage++) {
        if (stage == kO) {  // the cache comes between the weights of qkv and of o
          if (n) await(&s.cache_empty, (n - 1) % 2);
          expect(&s.cache_full, kCacheBytes);
          copy_to_all(cached + rank * kSlice, cache + (static_cast<size_t>(lane) * kLayers + layer) * kCacheBytes + rank * kSlice, kSlice, &s.cache_full);
        }
        if (n > 1) await(&s.empty[n % 2][stage], (n / 2 - 1) % 2);
        if (kStreams || n < 2) {
          expect(&s.full[n % 2][stage], bytes_of(stage));
          copy(weights + n % 2 * kLayerBytes + offset_of(stage), own + layer * kLayerBytes + offset_of(stage), bytes_of(stage), &s.full[n % 2][stage]);
        } else {
          arrive(&s.full[n % 2][stage]);
        }
      }
    }
  } else if (threadIdx.x < kConsumers) {
    Consumer<kGlobal> consumer{s, words + lane * (kSharedStruct / 4), weights, cached, static_cast<int>(threadIdx.x / 32), static_cast<int>(threadIdx.x % 32), static_cast<int>(threadIdx.x % 32 / 4), static_cast<int>(threadIdx.x % 4), rank};
    const float zero[4] = {};
    if (consumer.warp < kTiles) consumer.add(zero, zero, s.in_qkv, kQkvStage, 1);
    uint64_t begin = 0, end;
    long long spent[kStages] = {};  // cycles from the end of one stage to the end of the next
#pragma unroll 1
    for (; consumer.n < count; consumer.n++) {
      if (consumer.n == kWarmUp * kLayers) asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
      const long long at[] = {clock64(), (consumer.qkv(), clock64()), (consumer.template attend<kPositions>(), clock64()), (consumer.gate(), clock64()), (consumer.down(), clock64())};
      for (int stage = 0; stage < kStages; stage++) spent[stage] += at[stage + 1] - at[stage];
    }
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(end));
    if (threadIdx.x == 0) {
      took[blockIdx.x] = (end - begin) * 1e-3f / (kTokens - kWarmUp);
      for (int stage = 0; stage < kStages; stage++) took[7 * kSms + stage] = static_cast<float>(spent[stage]) / count;  // of any SM
    }
    if (consumer.residual[0] == -1.f) *sink = consumer.residual[1];
  }
  __syncthreads();
  __syncwarp();
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

template <int kPositions, bool kStreams, bool kGlobal>
void measure(const char* tape, const char* cache, uint32_t* words, float* took_there, float* sink) {
  const auto kernel = chain<kPositions, kStreams, kGlobal>;
  const int shared = kSharedStruct + 2 * kLayerBytes + kPositions * kHeadDim * 4;
  CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
  CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  cudaLaunchConfig_t config = {};
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = kSms, attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  config.gridDim = dim3(kSms), config.blockDim = dim3(kThreads), config.dynamicSmemBytes = shared, config.attrs = &attribute, config.numAttrs = 1;
  int clusters = 0;
  CHECK(cudaOccupancyMaxActiveClusters(&clusters, reinterpret_cast<void*>(kernel), &config));
  clusters = std::min(clusters, 7);
  config.gridDim = dim3(clusters * kSms);
  float best = 1e9f, took[7 * kSms + kStages];
  for (int n = 0; n < 4; n++) {
    CHECK(cudaMemset(words, 0, 7 * kSharedStruct));
    CHECK(cudaLaunchKernelEx(&config, kernel, tape, cache, words, took_there, sink));
    CHECK(cudaMemcpy(took, took_there, sizeof took, cudaMemcpyDeviceToHost));
    best = std::min(best, *std::max_element(took, took + clusters * kSms));
  }
  const double bytes = kStreams ? static_cast<double>(clusters) * kSms * kLayers * kLayerBytes : 0;
  printf("hand-offs through %s memory, %d lanes of %d SMs, %d layers, context %d, weights %s: %.1f us, %.2f a layer, %.2f TB/s of weights; cycles of qkv %.0f, attention and o %.0f, gate %.0f, down %.0f\n", kGlobal ? "global" : "shared", clusters, kSms, kLayers, kPositions, kStreams ? "streamed" : "there already", best, best / kLayers, bytes / best * 1e-6, took[7 * kSms], took[7 * kSms + 1],
         took[7 * kSms + 2], took[7 * kSms + 3]);
  fflush(stdout);
}

int main() {
  const size_t tape_bytes = static_cast<size_t>(7 * kSms) * kLayers * kLayerBytes, cache_bytes = static_cast<size_t>(7) * kLayers * 256 * kHeadDim * 4;
  char *tape, *cache;
  uint32_t* words;
  float *took, *sink;
  CHECK(cudaMalloc(&words, 7 * kSharedStruct));
  CHECK(cudaMalloc(&tape, tape_bytes));
  CHECK(cudaMalloc(&cache, cache_bytes));
  CHECK(cudaMalloc(&took, (7 * kSms + kStages) * 4));
  CHECK(cudaMalloc(&sink, 4));
  std::vector<uint16_t> random(std::max(tape_bytes, cache_bytes) / 2);
  uint32_t state = 1;
  for (auto& value : random) state = state * 1664525u + 1013904223u, value = static_cast<uint16_t>((state >> 16 & 0x807f) | 0x3c00);  // bf16 between 1/128 and 1/64, of both signs
  CHECK(cudaMemcpy(tape, random.data(), tape_bytes, cudaMemcpyHostToDevice));
  CHECK(cudaMemcpy(cache, random.data(), cache_bytes, cudaMemcpyHostToDevice));
  measure<128, false, false>(tape, cache, words, took, sink);
  measure<256, false, false>(tape, cache, words, took, sink);
  measure<128, true, false>(tape, cache, words, took, sink);
  measure<256, true, false>(tape, cache, words, took, sink);
  measure<128, false, true>(tape, cache, words, took, sink);
  measure<256, true, true>(tape, cache, words, took, sink);
  return 0;
}
