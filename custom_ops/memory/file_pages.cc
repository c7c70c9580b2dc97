#include "memory/file_pages.h"

#ifdef __linux__
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <iterator>

namespace coreai {
namespace {

// Of an entry of /proc/self/pagemap (Documentation/admin-guide/mm/pagemap.rst in Linux): the page
// is in memory, swapped, or one of a file.
constexpr std::uint64_t kPresent = std::uint64_t{1} << 63, kSwapped = std::uint64_t{1} << 62,
                        kOfFile = std::uint64_t{1} << 61;

bool IsOfFile(std::uint64_t entry) {
  return (entry & (kPresent | kSwapped)) == 0 || (entry & kOfFile) != 0;
}

// Whether pages [first, first + count), those that are in memory, are pages of files.
bool AreOfFiles(int pagemap, std::size_t first, std::size_t count) {
  std::uint64_t entries[512];
  for (std::size_t done = 0; done < count;) {
    const std::size_t some = std::min(count - done, std::size(entries));
    const auto bytes = static_cast<ssize_t>(some * sizeof(entries[0]));
    const auto place = static_cast<off_t>((first + done) * sizeof(entries[0]));
    if (pread(pagemap, entries, some * sizeof(entries[0]), place) != bytes) return false;
    if (!std::all_of(entries, entries + some, IsOfFile)) return false;
    done += some;
  }
  return true;
}

}  // namespace

void ReleaseFilePages(const void* data, std::size_t size) noexcept {
  static const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const auto start = reinterpret_cast<std::uintptr_t>(data);
  const std::size_t first = (start + page - 1) / page, end = (start + size) / page;
  if (first >= end) return;
  const int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  if (pagemap < 0) return;
  if (AreOfFiles(pagemap, first, end - first)) {
    madvise(reinterpret_cast<void*>(first * page), (end - first) * page, MADV_DONTNEED);
  }
  close(pagemap);
}

}  // namespace coreai
#else
namespace coreai {

void ReleaseFilePages(const void*, std::size_t) noexcept {}

}  // namespace coreai
#endif
