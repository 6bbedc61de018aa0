// Where in L2 the words of a hand-off lie, seen from an SM: near or far; and what a hand-off takes when its words are near those that poll them.
//
// 1. SMs that can share a cluster are in one GPC. 2. The latency of each line of L2 from each GPC tells near lines from far ones, and GPCs of one side of the chip from those of the other.
// 3. Hand-offs: every thread block publishes its share of the values as tagged words, and polls all values of its lane. Lanes are blocks in the order of their numbers, GPCs, or all SMs;
//    lines are any, near ones or far ones, or there are two copies, and each block polls the near one. With clusters also by st.async to shared memory and an mbarrier. Idle, and while weights stream.
//
// Seen: a load takes some 275 cycles from a near line and 300 from a far one; the side changes every 256 bytes to 3.5 KiB. A hand-off of 576 values, while each SM streams 8 KiB in 900 ns, takes 0.73 us
// among 18 SMs that are neighbours by number, 0.60 on one GPC (0.59 with near lines, 0.64 with far ones), and 0.50 through shared memory in a cluster of 16. Among all SMs 1.06 to 1.33 us, the more
// is streamed the longer; with two copies, each near, 0.99 to 1.20; with the lines of one side alone 1.22 to 1.50.
//
//     nvcc -O3 -std=c++17 -arch=sm_90a l2_probe.cu -o l2_probe && ./l2_probe
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#define CHECK(x)                                                                       \
  do {                                                                                 \
    cudaError_t error = (x);                                                           \
    if (error != cudaSuccess) {                                                        \
      printf("%s in line %d\n", cudaGetErrorString(error), __LINE__);                  \
      exit(1);                                                                         \
    }                                                                                  \
  } while (0)

constexpr int kThreads = 256, kLineBytes = 128, kLineWords = 32, kLines = 8192, kChain = 8, kMaxSms = 160, kMaxLines = 128, kRounds = 3000, kWarmUp = 200;
constexpr int kSharedBytes = 160 << 10, kChunkBytes = 8 << 10, kSlots = 8;

__device__ __forceinline__ uint32_t sm() {
  uint32_t id;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
  return id;
}
__device__ __forceinline__ uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }
__device__ __forceinline__ uint64_t nanoseconds() {
  uint64_t t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}

// 1. The SMs of every cluster.
__global__ void clusters(uint32_t* cluster_of) {
  uint32_t id;
  asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(id));
  if (threadIdx.x == 0) cluster_of[sm()] = id;
}

// 2. Cycles of a load of each line, the least of `repeats`, by SM.
__global__ void latencies(uint32_t* words, uint16_t* found, int repeats) {
  __shared__ uint32_t sink;
  if (threadIdx.x) return;
  uint16_t* own = found + static_cast<size_t>(sm()) * kLines;
  for (int n = 0; n < repeats; n++)
    for (int i = 0; i < kLines; i++) {
      const int line = (i + sm() * (kLines / kMaxSms)) % kLines;
      const uint32_t* at = words + static_cast<size_t>(line) * kLineWords;
      uint32_t value = 0, begin, end;
      asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
      asm volatile("st.volatile.shared.u32 [%0], %1;" ::"r"(shared_address(&sink)), "r"(value) : "memory");
      asm volatile("mov.u32 %0, %%clock;" : "=r"(begin)::"memory");
      for (int k = 0; k < kChain; k++) asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(at + value) : "memory");
      asm volatile("st.volatile.shared.u32 [%0], %1;" ::"r"(shared_address(&sink)), "r"(value) : "memory");
      asm volatile("mov.u32 %0, %%clock;" : "=r"(end)::"memory");
      const uint16_t cycles = (end - begin) / kChain;
      if (n == 0 || cycles < own[line]) own[line] = cycles;
    }
}

// What a launch is told.
struct Launch {
  int lane_of[kMaxSms], rank_of[kMaxSms], side_of[kMaxSms];  // by SM; lane -1: it has nothing to do
  int size_of[kMaxSms];                                      // blocks of a lane
  int values, copies, in_flight, period;                     // in_flight: chunks of 8 KiB; period: nanoseconds between two of them, or 0
};

__device__ __forceinline__ void await(uint64_t* at, uint32_t parity) {
  asm volatile("{\n.reg .pred P;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 P, [%0], %1;\n@!P bra AGAIN;\n}" ::"r"(shared_address(at)), "r"(parity) : "memory");
}

// Streams weights until the others of the block are done: `in_flight` bulk copies at a time.
__device__ void stream(const char* weights, size_t bytes, char* slots, uint64_t* full, const volatile int* done, const Launch& launch) {
  const char* from = weights + static_cast<size_t>(blockIdx.x) * (bytes / gridDim.x / kChunkBytes * kChunkBytes);
  const size_t own = bytes / gridDim.x / kChunkBytes;
  const size_t most = launch.in_flight;
  const auto await_copy = [&](size_t i) { await(full + i % most, i / most % 2); };
  uint64_t next = nanoseconds();
  size_t i = 0;
  for (; !*done; i++) {
    const uint32_t barrier = shared_address(full + i % most);
    if (i >= most) await_copy(i - most);
    while (launch.period && nanoseconds() < next && !*done) {}
    next += launch.period;
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(kChunkBytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(slots + i % most * kChunkBytes)), "l"(from + i % own * kChunkBytes), "r"(kChunkBytes), "r"(barrier)
                 : "memory");
  }
  for (size_t last = i - (i < most ? i : most); last < i; last++) await_copy(last);
}

// 3. Rounds of hand-offs through global memory. `lines`: the offset of each line of words, [copy][lane][parity][line].
__global__ void __launch_bounds__(kThreads + 32, 1) rounds_global(char* memory, const int* lines, const char* weights, size_t weight_bytes, const __grid_constant__ Launch launch, float* took, float* sink) {
  extern __shared__ __align__(128) char slots[];
  __shared__ uint64_t full[kSlots];
  __shared__ int done;
  const int t = threadIdx.x, lane = launch.lane_of[sm()], rank = launch.rank_of[sm()], side = launch.copies > 1 ? launch.side_of[sm()] : 0;
  if (t == 0) {
    done = 0;
    for (auto& barrier : full) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&barrier)));
    asm volatile("fence.mbarrier_init.release.cluster;");
  }
  __syncthreads();
  if (lane < 0) return;
  if (t >= kThreads) {
    if (t == kThreads && launch.in_flight) stream(weights, weight_bytes, slots, full, &done, launch);
    return;
  }
  const int size = launch.size_of[lane], first = launch.values * rank / size, own = launch.values * (rank + 1) / size - first;
  const auto word = [&](int copy, int parity, int v) { return reinterpret_cast<uint32_t*>(memory + lines[((copy * kMaxSms + lane) * 2 + parity) * kMaxLines + v / kLineWords]) + v % kLineWords; };
  uint32_t *out[2][2] = {}, *in[2][4] = {};
  for (int parity = 0; parity < 2; parity++) {
    for (int copy = 0; copy < launch.copies; copy++)
      if (t < own) out[copy][parity] = word(copy, parity, first + t);
    for (int j = 0; j < 4; j++)
      if ((t + j * kThreads) * 4 < launch.values) in[parity][j] = word(side, parity, (t + j * kThreads) * 4);
  }
  float sum = 0;
  uint64_t begin = 0;
  for (uint32_t round = 1; round <= kRounds; round++) {
    if (round == kWarmUp && t == 0) begin = nanoseconds();
    const uint32_t published = (__float_as_uint(sum) & 0xffff0000u) | round, parity = round & 1;
    for (int copy = 0; copy < launch.copies; copy++)
      if (out[copy][parity]) asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(out[copy][parity]), "r"(published) : "memory");
#pragma unroll
    for (int j = 0; j < 4; j++) {
      if (!in[parity][j]) continue;
      uint4 v;
      do asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(in[parity][j]) : "memory");
      while (((v.x ^ round) | (v.y ^ round) | (v.z ^ round) | (v.w ^ round)) & 0xffff);
      sum += __uint_as_float(v.x & 0xffff0000u) * 1e-9f;
    }
    asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
  }
  if (t == 0) took[sm()] = (nanoseconds() - begin) * 1e-3f / (kRounds - kWarmUp + 1), done = 1;
  if (sum == -1.f) *sink = sum;
}

// The same with clusters, by st.async to the shared memory of every block of the cluster, two values at a time.
__global__ void __launch_bounds__(kThreads + 32, 1) rounds_shared(const char* weights, size_t weight_bytes, const __grid_constant__ Launch launch, float* took, float* sink) {
  extern __shared__ __align__(128) char slots[];
  __shared__ uint64_t full[kSlots], arrived[2];
  __shared__ __align__(16) float input[2][4096];
  __shared__ int done;
  uint32_t rank, size;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  const int t = threadIdx.x, pairs = launch.values / 2, first = pairs * rank / size, own = pairs * (rank + 1) / size - first;
  if (t == 0) {
    done = 0;
    for (auto& barrier : full) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&barrier)));
    for (auto& barrier : arrived) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&barrier)));
    asm volatile("fence.mbarrier_init.release.cluster;");
  }
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
  if (t == kThreads && launch.in_flight) stream(weights, weight_bytes, slots, full, &done, launch);
  float sum = 0;
  uint64_t begin = 0;
  if (t < kThreads)
    for (uint32_t round = 1; round <= kRounds; round++) {
      if (round == kWarmUp && t == 0) begin = nanoseconds();
      const uint32_t parity = round & 1, barrier = shared_address(&arrived[parity]), bytes = launch.values * 4;
      if (t == 0) asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
      for (int i = t; i < own * static_cast<int>(size); i += kThreads) {
        const int to = i / own, pair = first + i % own;
        const uint64_t value = static_cast<uint64_t>(__float_as_uint(sum + pair)) << 32 | __float_as_uint(sum - pair);
        uint32_t place, remote;
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(place) : "r"(shared_address(&input[parity][2 * pair])), "r"(to));
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(barrier), "r"(to));
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(place), "l"(value), "r"(remote) : "memory");
      }
      await(&arrived[parity], (round - 1) / 2 & 1);
      for (int v = t * 4; v < launch.values; v += kThreads * 4) sum += reinterpret_cast<float4*>(&input[parity][v])->x * 1e-9f;
      asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
    }
  if (t == 0) took[sm()] = (nanoseconds() - begin) * 1e-3f / (kRounds - kWarmUp + 1), done = 1;
  if (sum == -1.f) *sink = sum;
  __syncthreads();
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

struct Cluster {
  cudaLaunchConfig_t config = {};
  cudaLaunchAttribute attribute = {};

  Cluster(int blocks, int cluster, int threads, int shared) {
    config.gridDim = dim3(blocks), config.blockDim = dim3(threads), config.dynamicSmemBytes = shared, config.attrs = &attribute, config.numAttrs = 1;
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = cluster, attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  }
  template <class Kernel>
  static void allow(Kernel* kernel, int shared) {
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  }
  template <class Kernel>
  int most(Kernel* kernel) {
    int found = 0;
    CHECK(cudaOccupancyMaxActiveClusters(&found, reinterpret_cast<void*>(kernel), &config));
    return found;
  }
};

float correlation(const std::vector<float>& a, const std::vector<float>& b) {
  const float mean_a = std::accumulate(a.begin(), a.end(), 0.f) / a.size(), mean_b = std::accumulate(b.begin(), b.end(), 0.f) / b.size();
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); i++) ab += (a[i] - mean_a) * (b[i] - mean_b), aa += (a[i] - mean_a) * (a[i] - mean_a), bb += (b[i] - mean_b) * (b[i] - mean_b);
  return static_cast<float>(ab / std::sqrt(aa * bb));
}

int main() {
  cudaDeviceProp properties;
  CHECK(cudaGetDeviceProperties(&properties, 0));
  const int sms = properties.multiProcessorCount;
  const size_t weight_bytes = 4ull << 30;
  char *memory, *weights;
  uint32_t* cluster_there;
  uint16_t* found_there;
  int* lines;
  float *took_there, *sink;
  CHECK(cudaMalloc(&memory, kLines * kLineBytes));
  CHECK(cudaMalloc(&weights, weight_bytes));
  CHECK(cudaMalloc(&lines, 2 * kMaxSms * 2 * kMaxLines * sizeof(int)));
  CHECK(cudaMalloc(&cluster_there, kMaxSms * 4));
  CHECK(cudaMalloc(&found_there, kMaxSms * kLines * 2));
  CHECK(cudaMalloc(&took_there, kMaxSms * 4));
  CHECK(cudaMalloc(&sink, 4));
  CHECK(cudaMemset(memory, 0, kLines * kLineBytes));

  // 1. GPCs.
  std::vector<int> gpc_of(sms);
  std::iota(gpc_of.begin(), gpc_of.end(), 0);
  Cluster::allow(clusters, kSharedBytes);
  for (int size : {2, 4, 6, 8, 10, 12, 14, 16})
    for (int n = 0; n < 20; n++) {
      Cluster cluster(size, size, 32, kSharedBytes);
      const int count = cluster.most(clusters);
      if (!count) continue;
      cluster.config.gridDim.x = count * size;
      CHECK(cudaMemset(cluster_there, 255, kMaxSms * 4));
      CHECK(cudaLaunchKernelEx(&cluster.config, clusters, cluster_there));
      uint32_t cluster_of[kMaxSms];
      CHECK(cudaMemcpy(cluster_of, cluster_there, sizeof cluster_of, cudaMemcpyDeviceToHost));
      for (int i = 0; i < sms; i++)
        for (int j = 0; j < i; j++)
          if (cluster_of[i] != ~0u && cluster_of[i] == cluster_of[j] && gpc_of[i] != gpc_of[j]) {
            const int from = gpc_of[i], to = gpc_of[j];
            for (int& gpc : gpc_of)
              if (gpc == from) gpc = to;
          }
    }
  std::map<int, std::vector<int>> gpcs;
  for (int i = 0; i < sms; i++) gpcs[gpc_of[i]].push_back(i);
  printf("%d SMs, GPCs of", sms);
  for (auto& [_, members] : gpcs) printf(" %zu", members.size());
  printf(" SMs\n");

  // 2. Near and far lines.
  CHECK(cudaFuncSetAttribute(latencies, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  latencies<<<sms, 32, kSharedBytes>>>(reinterpret_cast<uint32_t*>(memory), found_there, 6);
  std::vector<uint16_t> found(kMaxSms * kLines);
  CHECK(cudaMemcpy(found.data(), found_there, found.size() * 2, cudaMemcpyDeviceToHost));
  std::vector<std::vector<float>> mean;  // of each GPC, by line
  std::vector<std::vector<int>> members;
  for (auto& [_, those] : gpcs) {
    std::vector<float> of(kLines);
    for (int line = 0; line < kLines; line++) {
      for (int i : those) of[line] += found[i * kLines + line];
      of[line] /= those.size();
    }
    mean.push_back(of), members.push_back(those);
  }
  std::vector<int> gpc_side;
  for (size_t g = 0; g < mean.size(); g++) {
    std::vector<float> sorted = mean[g];
    std::sort(sorted.begin(), sorted.end());
    const float with_first = correlation(mean[0], mean[g]);
    gpc_side.push_back(with_first < 0);
    printf("GPC %zu (SM %d ...): cycles of a load: least %.0f, tenths", g, members[g][0], sorted[0]);
    for (int tenth = 1; tenth < 10; tenth++) printf(" %.0f", sorted[kLines * tenth / 10]);
    printf(", most %.0f; correlation with GPC 0: %.2f\n", sorted.back(), with_first);
  }
  // The side of a line: how much nearer it is to GPCs of side 0 than to those of side 1.
  std::vector<int> line_side(kLines);
  for (int line = 0; line < kLines; line++) {
    float sum[2] = {}, count[2] = {};
    for (size_t g = 0; g < mean.size(); g++) sum[gpc_side[g]] += mean[g][line], count[gpc_side[g]]++;
    line_side[line] = count[1] ? sum[0] / count[0] > sum[1] / count[1] : mean[0][line] > std::accumulate(mean[0].begin(), mean[0].end(), 0.f) / kLines;
  }
  std::map<int, int> runs;
  for (int line = 0, begin = 0; line <= kLines; line++)
    if (line == kLines || line_side[line] != line_side[begin]) runs[line - begin]++, begin = line;
  printf("Lines in a row on the same side (128 bytes each) and how often:");
  for (auto& [length, count] : runs) printf(" %d: %d", length, count);
  printf("\nThe sides of the first 256 lines: ");
  for (int line = 0; line < 256; line++) printf("%d", line_side[line]);
  printf("\n");

  // 3. Hand-offs.
  std::vector<int> of_side[3];  // lines of side 0, of side 1, and all
  for (int line = 0; line < kLines; line++) of_side[line_side[line]].push_back(line), of_side[2].push_back(line);
  std::vector<int> side_of_sm(sms);
  for (size_t g = 0; g < members.size(); g++)
    for (int i : members[g]) side_of_sm[i] = gpc_side[g];
  enum Lines { kAny, kNear, kFar, kBoth, kSide0 };
  const char* names[] = {"any lines", "near lines", "far lines", "two copies, each near", "lines of side 0"};
  CHECK(cudaFuncSetAttribute(rounds_global, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  const auto handed = [&](const char* what, std::vector<std::vector<int>> lanes, Lines kind, int values, int in_flight, int period) {
    Launch launch = {};
    for (int i = 0; i < kMaxSms; i++) launch.lane_of[i] = -1;
    std::vector<int> offsets(2 * kMaxSms * 2 * kMaxLines);
    std::vector<size_t> next(3);
    for (size_t lane = 0; lane < lanes.size(); lane++) {
      launch.size_of[lane] = static_cast<int>(lanes[lane].size());
      for (size_t rank = 0; rank < lanes[lane].size(); rank++) {
        const int i = lanes[lane][rank];
        launch.lane_of[i] = static_cast<int>(lane), launch.rank_of[i] = static_cast<int>(rank), launch.side_of[i] = side_of_sm[i];
      }
      const int side = side_of_sm[lanes[lane][0]];
      for (int copy = 0; copy < (kind == kBoth ? 2 : 1); copy++)
        for (int parity = 0; parity < 2; parity++)
          for (int line = 0; line < values / kLineWords; line++) {
            const int from = kind == kAny ? 2 : kind == kNear ? side : kind == kFar ? 1 - side : kind == kBoth ? copy : 0;
            if (next[from] >= of_side[from].size()) {
              printf("%s: not enough lines\n", what);
              return;
            }
            offsets[((copy * kMaxSms + lane) * 2 + parity) * kMaxLines + line] = of_side[from][next[from]++] * kLineBytes;
          }
    }
    launch.values = values, launch.copies = kind == kBoth ? 2 : 1, launch.in_flight = in_flight, launch.period = period;
    CHECK(cudaMemcpy(lines, offsets.data(), offsets.size() * 4, cudaMemcpyHostToDevice));
    float best = 1e9f, best_mean = 0;
    for (int n = 0; n < 3; n++) {
      CHECK(cudaMemset(memory, 0, kLines * kLineBytes));
      float took[kMaxSms];
      rounds_global<<<sms, kThreads + 32, kSharedBytes>>>(memory, lines, weights, weight_bytes, launch, took_there, sink);
      CHECK(cudaMemcpy(took, took_there, sizeof took, cudaMemcpyDeviceToHost));
      float sum = 0, most = 0;
      for (auto& lane : lanes) sum += took[lane[0]], most = std::max(most, took[lane[0]]);
      if (most < best) best = most, best_mean = sum / lanes.size();
    }
    printf("%-34s %-24s %5d values, %d x 8 KiB in flight, one in %4d ns: %.3f us, slowest lane %.3f\n", what, names[kind], values, in_flight, period, best_mean, best);
    fflush(stdout);
  };
  std::vector<std::vector<int>> in_order, all(1), by_gpc;
  for (int lane = 0; lane < 7; lane++) {
    in_order.emplace_back();
    for (int rank = 0; rank < 18 && lane * 18 + rank < sms; rank++) in_order.back().push_back(lane * 18 + rank);
  }
  for (int i = 0; i < sms; i++) all[0].push_back(i);
  for (auto& those : members)
    if (those.size() >= 10) by_gpc.push_back(those);
  struct Load {
    int in_flight, period;
  };
  const Load loads[] = {{0, 0}, {2, 900}, {2, 0}, {4, 0}};
  for (const Load load : loads) {
    for (int values : {192, 576, 1536}) {
      handed("7 lanes of 18 SMs by number", in_order, kAny, values, load.in_flight, load.period);
      for (Lines kind : {kAny, kNear, kFar}) handed("lanes are GPCs", by_gpc, kind, values, load.in_flight, load.period);
    }
    for (int values : {576, 1536, 2048})
      for (Lines kind : {kAny, kSide0, kBoth}) handed("all SMs", all, kind, values, load.in_flight, load.period);
  }
  Cluster::allow(rounds_shared, kSharedBytes);
  for (int size : {8, 16})
    for (const Load load : loads)
      for (int values : {192, 576, 1536}) {
        Cluster cluster(size, size, kThreads + 32, kSharedBytes);
        const int count = cluster.most(rounds_shared);
        if (!count) continue;
        cluster.config.gridDim.x = count * size;
        Launch launch = {};
        launch.values = values, launch.in_flight = load.in_flight, launch.period = load.period;
        float best = 1e9f;
        for (int n = 0; n < 3; n++) {
          float took[kMaxSms];
          CHECK(cudaMemset(took_there, 0, sizeof took));
          CHECK(cudaLaunchKernelEx(&cluster.config, rounds_shared, static_cast<const char*>(weights), weight_bytes, launch, took_there, sink));
          CHECK(cudaMemcpy(took, took_there, sizeof took, cudaMemcpyDeviceToHost));
          best = std::min(best, *std::max_element(took, took + sms));
        }
        printf("%d clusters of %2d SMs, st.async: %5d values, %d x 8 KiB in flight, one in %4d ns: slowest %.3f us\n", count, size, values, load.in_flight, load.period, best);
        fflush(stdout);
      }
  return 0;
}
