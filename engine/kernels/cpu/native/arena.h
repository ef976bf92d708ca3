// Memory of the packed weights: slabs of 2 MB pages where the system has them, all freed at once.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

class Arena {
 public:
  ~Arena() {
    for (auto &slab : slabs_) munmap(slab.memory, slab.bytes);
  }

  // Zeros, aligned to 64 bytes. Throws bad_alloc.
  uint8_t *take(size_t bytes) {
    bytes = (bytes + 63) / 64 * 64;
    if (slabs_.empty() || slabs_.back().bytes - used_ < bytes) grow(bytes);
    uint8_t *memory = slabs_.back().memory + used_;
    used_ += bytes;
    return memory;
  }

 private:
  struct Slab {
    uint8_t *memory;
    size_t bytes;
  };
  static constexpr size_t PAGE = 2 << 20, LEAST = 64 << 20;

  void grow(size_t bytes) {
    size_t size = (bytes > LEAST ? bytes : LEAST) + PAGE;
    void *memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
    madvise(memory, size, MADV_HUGEPAGE);  // refused where there are none; then small ones do
#endif
    auto *bytes_at = static_cast<uint8_t *>(memory);
    auto aligned = (reinterpret_cast<uintptr_t>(bytes_at) + PAGE - 1) / PAGE * PAGE;
    slabs_.push_back({bytes_at, size});
    used_ = aligned - reinterpret_cast<uintptr_t>(bytes_at);
  }

  std::vector<Slab> slabs_;
  size_t used_ = 0;  // of the last slab, from its memory on
};
