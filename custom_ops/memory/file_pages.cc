#include "memory/file_pages.h"

#ifdef __linux__
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdint>
#include <ctime>
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

// A file that is closed at the end of a block.
class File {
 public:
  explicit File(const char* path) : number_(open(path, O_RDONLY | O_CLOEXEC)) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (number_ >= 0) close(number_);
  }
  int number() const { return number_; }

 private:
  const int number_;
};

std::size_t PageSize() {
  static const auto size = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

// As struct procmap_query in Linux's include/uapi/linux/fs.h.
struct MappingQuery {
  std::uint64_t size = sizeof(MappingQuery), flags = 0, address = 0, start = 0, end = 0,
                permissions = 0, page_size = 0, offset = 0, inode = 0;
  std::uint32_t major = 0, minor = 0, name_size = 0, build_id_size = 0;
  std::uint64_t name = 0, build_id = 0;
};
static_assert(sizeof(MappingQuery) == 104, "as the kernel has it");
constexpr unsigned long kQueryMapping = _IOWR('f', 17, MappingQuery);

constexpr std::uint64_t kSecond = 1000000000, kSettled = 2 * kSecond;

std::uint64_t Nanoseconds(const timespec& time) {
  return static_cast<std::uint64_t>(time.tv_sec) * kSecond +
         static_cast<std::uint64_t>(time.tv_nsec);
}

}  // namespace

void ReleaseFilePages(const void* data, std::size_t size) noexcept {
  const std::size_t page = PageSize();
  const auto start = reinterpret_cast<std::uintptr_t>(data);
  const std::size_t first = (start + page - 1) / page, end = (start + size) / page;
  if (first >= end) return;
  const File pagemap("/proc/self/pagemap");
  if (pagemap.number() >= 0 && AreOfFiles(pagemap.number(), first, end - first)) {
    madvise(reinterpret_cast<void*>(first * page), (end - first) * page, MADV_DONTNEED);
  }
}

std::optional<FilePlace> PlaceInFile(const void* data, std::size_t size) noexcept {
  const auto start = reinterpret_cast<std::uintptr_t>(data);
  const File maps("/proc/self/maps"), pagemap("/proc/self/pagemap");
  char name[PATH_MAX];
  MappingQuery query;
  query.address = start;
  query.name = reinterpret_cast<std::uintptr_t>(name);
  query.name_size = sizeof(name);
  if (maps.number() < 0 || ioctl(maps.number(), kQueryMapping, &query) != 0) return {};
  struct stat status = {};
  timespec now = {};
  if (start + size > query.end || query.inode == 0 || query.name_size == 0 ||
      stat(name, &status) != 0 || clock_gettime(CLOCK_REALTIME, &now) != 0) {
    return {};
  }
  // The file of this name may be another one by now.
  if (status.st_ino != query.inode || major(status.st_dev) != query.major ||
      minor(status.st_dev) != query.minor) {
    return {};
  }
  const std::uint64_t written = Nanoseconds(status.st_mtim), changed = Nanoseconds(status.st_ctim);
  if (std::max(written, changed) + kSettled > Nanoseconds(now)) return {};
  // Pages of a private mapping that were written are not those of the file.
  const std::size_t first = start / PageSize(), end = (start + size + PageSize() - 1) / PageSize();
  if (pagemap.number() < 0 || !AreOfFiles(pagemap.number(), first, end - first)) return {};
  return FilePlace{status.st_dev,
                   status.st_ino,
                   static_cast<std::uint64_t>(status.st_size),
                   written,
                   changed,
                   query.offset + (start - query.start),
                   size,
                   1};
}

}  // namespace coreai
#else
namespace coreai {

void ReleaseFilePages(const void*, std::size_t) noexcept {}
std::optional<FilePlace> PlaceInFile(const void*, std::size_t) noexcept { return {}; }

}  // namespace coreai
#endif
