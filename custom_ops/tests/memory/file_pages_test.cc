#include "memory/file_pages.h"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "gtest/gtest.h"

#ifdef __linux__
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace coreai {
namespace {

TEST(ReleaseFilePages, KeepsTheHeap) {
  const std::vector<char> memory(std::size_t{1} << 20, 7);
  ReleaseFilePages(memory.data(), memory.size());
  EXPECT_EQ(memory, std::vector<char>(memory.size(), 7));
  ReleaseFilePages(nullptr, 0);
}

#ifdef __linux__
constexpr std::size_t kPages = 1100;  // more than are inspected at a time

// A file of whole pages, each with its own byte, in a private mapping that may be written.
class MappedFile {
 public:
  MappedFile() : page_(static_cast<std::size_t>(sysconf(_SC_PAGESIZE))), file_(std::tmpfile()) {
    for (std::size_t i = 0; i < kPages; ++i) {
      const std::vector<char> bytes(page_, static_cast<char>(i % 100 + 1));
      std::fwrite(bytes.data(), 1, page_, file_);
    }
    std::fflush(file_);
    void* const mapped =
        mmap(nullptr, size(), PROT_READ | PROT_WRITE, MAP_PRIVATE, fileno(file_), 0);
    data_ = mapped == MAP_FAILED ? nullptr : static_cast<char*>(mapped);
  }
  ~MappedFile() {
    munmap(data_, size());
    std::fclose(file_);
  }

  std::size_t page() const { return page_; }
  std::size_t size() const { return kPages * page_; }
  char* data() const { return data_; }

  /// Pages that the process has in memory; all are, once they were read.
  std::size_t Resident() const {
    std::FILE* const pagemap = std::fopen("/proc/self/pagemap", "rb");
    if (pagemap == nullptr) return kPages;
    std::vector<std::uint64_t> entries(kPages);
    std::fseek(pagemap, static_cast<long>(reinterpret_cast<std::uintptr_t>(data_) / page_ * 8),
               SEEK_SET);
    EXPECT_EQ(std::fread(entries.data(), 8, kPages, pagemap), kPages);
    std::fclose(pagemap);
    std::size_t present = 0;
    for (const std::uint64_t entry : entries) present += entry >> 63;
    return present;
  }

  bool IsWhole() const {
    for (std::size_t i = 0; i < size(); ++i) {
      if (data_[i] != static_cast<char>(i / page_ % 100 + 1)) return false;
    }
    return true;
  }

 private:
  std::size_t page_;
  std::FILE* file_;
  char* data_ = nullptr;
};

TEST(ReleaseFilePages, TakesWholePagesOfFiles) {
  const MappedFile file;
  ASSERT_TRUE(file.IsWhole());
  ASSERT_EQ(file.Resident(), kPages);
  ReleaseFilePages(file.data() + 1, file.size() - 1);
  EXPECT_EQ(file.Resident(), 1u);
  EXPECT_TRUE(file.IsWhole());
}

TEST(ReleaseFilePages, KeepsPagesThatWereWritten) {
  const MappedFile file;
  ASSERT_TRUE(file.IsWhole());
  char* const last = file.data() + file.size() - 1;
  *last = 0;
  ReleaseFilePages(file.data(), file.size());
  EXPECT_EQ(file.Resident(), kPages);
  EXPECT_EQ(*last, 0);
}
#endif

}  // namespace
}  // namespace coreai
