// The end of a program that runs a generated kernel, which is its beginning, on another machine than the host: weights and tokens come from the files of
// a folder, and the logits after every token and the tokens of a greedy answer go to files of it. See test_arm.py.
#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

std::string folder;

template <class T>
std::vector<T> read(const std::string& name) {
  std::FILE* file = std::fopen((folder + "/" + name).c_str(), "rb");
  if (!file) return {};
  std::fseek(file, 0, SEEK_END);
  std::vector<T> found(std::ftell(file) / sizeof(T));
  std::rewind(file);
  if (std::fread(found.data(), sizeof(T), found.size(), file) != found.size()) std::abort();
  std::fclose(file);
  return found;
}

void write(const std::string& name, const void* bytes, size_t size) {
  std::FILE* file = std::fopen((folder + "/" + name).c_str(), "wb");
  if (!file || std::fwrite(bytes, 1, size, file) != size || std::fclose(file)) std::abort();
}

}  // namespace

int main(int, char** arguments) {
  using namespace monolane;
  folder = arguments[1];
  const int context = std::atoi(arguments[2]), workers = std::atoi(arguments[3]), answer = std::atoi(arguments[4]);
  const auto segments = read<Segment>("segments");
  const auto tokens = read<int32_t>("tokens");
  const auto constants = read<float>("constants");
  const auto table = read<uint8_t>("table");
  std::vector<std::vector<uint8_t>> bytes;
  std::vector<const uint8_t*> tapes;
  for (int worker = 0; worker < workers; worker++) bytes.push_back(read<uint8_t>("tape" + std::to_string(worker)));
  for (const auto& tape : bytes) tapes.push_back(tape.data());
  const float* const lanes[] = {constants.data()};
  const Setup setup{.workers = workers, .threads = workers, .first_lane = 0, .lanes = 1, .context = context, .unused = 0, .segments = segments.data(),
                    .tapes = tapes.data(), .constants = lanes, .table = table.empty() ? nullptr : table.data(), .processors = nullptr, .shared = nullptr,
                    .deadline_s = 60};
  void* engine = monolane_open(&setup);
  if (!engine) return 1;
  std::vector<uint8_t> keys(std::atoll(arguments[5])), values(std::atoll(arguments[6]));
  const Cache cache{keys.data(), values.data()};
  std::vector<float> logits(tokens.size() * kVocab);
  Request request{};
  request.tokens = tokens.data();
  request.token_count = static_cast<int64_t>(tokens.size());
  request.logprobs = -1;
  request.sampling = read<Sampling>("sampling")[0];
  const auto run = [&] {
    if (!monolane_start(engine, &request, &cache, std::vector<Trace>(1).data())) std::exit(2);
    int64_t made = 0;
    while (monolane_status(engine) == kRunning) made = monolane_wait(engine, made, 100);
    if (monolane_status(engine) != kLengthReached) std::exit(3);
  };
  request.all_logits = logits.data();
  run();
  request.all_logits = nullptr;
  request.max_tokens = answer;
  run();
  std::vector<int32_t> made;
  for (int i = 0; i < answer; i++) made.push_back(static_cast<const Entry*>(monolane_entries(engine))[i].token);
  write("logits", logits.data(), logits.size() * sizeof(float));
  write("answer", made.data(), made.size() * sizeof(int32_t));
  return monolane_close(engine) ? 0 : 4;
}
