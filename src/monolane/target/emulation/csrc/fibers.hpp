// Fibers: many stacks inside one thread of the operating system, between which the emulator switches explicitly. It reports every switch to
// ThreadSanitizer, as a switch that orders no memory: fibers race like threads unless they synchronise.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#if defined(__SANITIZE_THREAD__)
#define MONOLANE_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define MONOLANE_TSAN 1
#endif
#endif
#ifndef MONOLANE_TSAN
#define MONOLANE_TSAN 0
#endif

#if MONOLANE_TSAN
#include <sanitizer/tsan_interface.h>
// ThreadSanitizer does not instrument functions that handle the emulator's own state; it checks what the kernel does.
#define MONOLANE_UNTRACKED __attribute__((no_sanitize("thread"))) inline
#else
#define MONOLANE_UNTRACKED inline
#endif

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace monolane::emulate {

// Mapped memory with an inaccessible guard page before and after it, so that an overrun ends the process at once.
class Pages {
 public:
  explicit Pages(size_t bytes) : page_(sysconf(_SC_PAGESIZE)), bytes_((bytes + page_ - 1) / page_ * page_) {
    void* mapped = mmap(nullptr, bytes_ + 2 * page_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED || mprotect(static_cast<char*>(mapped) + page_, bytes_, PROT_READ | PROT_WRITE) != 0) {
      std::perror("monolane emulation: mmap");
      std::abort();
    }
    begin_ = static_cast<char*>(mapped) + page_;
  }
  Pages(const Pages&) = delete;
  ~Pages() { munmap(begin_ - page_, bytes_ + 2 * page_); }

  char* begin() const { return begin_; }
  char* end() const { return begin_ + bytes_; }

 private:
  size_t page_, bytes_;
  char* begin_;
};

#if defined(__x86_64__)

// The saved state of a fiber: its stack pointer. The registers that a call must preserve lie on its stack.
using Saved = void*;

#if defined(__clang__)
__attribute__((naked, noinline, no_sanitize("thread")))
#else
__attribute__((naked, noipa, no_sanitize("thread")))
#endif
inline void
swap_stacks(Saved* /*rdi: from*/, const Saved* /*rsi: to*/) {
  asm volatile(
      "pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
      "movq %rsp, (%rdi)\n movq (%rsi), %rsp\n"
      "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n ret");
}

inline void prepare_stack(Saved& saved, char* /*bottom*/, char* end, void (*entry)()) {
  void** top = reinterpret_cast<void**>(end);  // aligned to 16 bytes
  top[-1] = nullptr;                           // the return address of `entry`, which never returns
  top[-2] = reinterpret_cast<void*>(entry);    // below it lie the six saved registers, zero as fresh memory is
  saved = top - 8;
}

#else

// Portable, at the price of a system call per switch.
using Saved = ucontext_t;

inline void swap_stacks(Saved* from, const Saved* to) { swapcontext(from, to); }
inline void prepare_stack(Saved& saved, char* bottom, char* end, void (*entry)()) {
  getcontext(&saved);
  saved.uc_stack.ss_sp = bottom;
  saved.uc_stack.ss_size = static_cast<size_t>(end - bottom);
  makecontext(&saved, entry, 0);
}

#endif

// Where a fiber, or the thread that started the fibers, continues when it is switched to.
struct Context {
  Saved saved{};
  void* tsan = nullptr;

  // Prepares a fiber that runs `entry`, which never returns. Stacks of neighbouring fibers start at different offsets within a page; at the
  // same offset they would share sets of the CPU cache and evict each other.
  void begin(const Pages& stack, int index, void (*entry)()) {
    prepare_stack(saved, stack.begin(), stack.end() - index * 320 % 4096, entry);
#if MONOLANE_TSAN
    tsan = __tsan_create_fiber(0);
#endif
  }
  // For the thread that starts the fibers.
  void begin_here() {
#if MONOLANE_TSAN
    tsan = __tsan_get_current_fiber();
#endif
  }
  void end() {
#if MONOLANE_TSAN
    __tsan_destroy_fiber(tsan);
#endif
  }
};

MONOLANE_UNTRACKED void switch_context(Context& from, const Context& to) {
#if MONOLANE_TSAN
  __tsan_switch_to_fiber(to.tsan, __tsan_switch_to_fiber_no_sync);
#endif
  swap_stacks(&from.saved, &to.saved);
}

}  // namespace monolane::emulate
