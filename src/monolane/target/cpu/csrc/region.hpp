// Memory that the processes of several lanes map, each at an address of its own. It is cut into the same arrays in every process, in the same order.
// It begins as zeros, and everything in it is valid as zeros.
#pragma once
#include <cstddef>
#include <cstdint>

namespace monolane {

class Region {
 public:
  // Without memory, nothing but the size is computed.
  explicit Region(void* memory) : memory_(static_cast<uint8_t*>(memory)) {}

  template <class T>
  T* take(size_t count) {
    size_ = (size_ + kAlignment - 1) / kAlignment * kAlignment;
    T* array = memory_ ? reinterpret_cast<T*>(memory_ + size_) : nullptr;
    size_ += count * sizeof(T);
    return array;
  }

  size_t size() const { return size_; }

 private:
  static constexpr size_t kAlignment = 128;
  uint8_t* memory_;
  size_t size_ = 0;
};

}  // namespace monolane
