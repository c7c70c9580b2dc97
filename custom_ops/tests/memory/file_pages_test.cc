#include "memory/file_pages.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

#ifdef __linux__
#include <fcntl.h>
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

// A file with a name, and what PlaceInFile needs: a change has its time two seconds later.
class NamedFile {
 public:
  NamedFile() : path_(::testing::TempDir() + "place_in_file") {
    Write(0);
    file_ = open(path_.c_str(), O_RDONLY);
    void* const mapped = mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE, file_, 0);
    data_ = mapped == MAP_FAILED ? nullptr : static_cast<char*>(mapped);
  }
  ~NamedFile() {
    munmap(data_, kSize);
    close(file_);
    std::remove(path_.c_str());
  }
  void Write(char value) const {
    std::FILE* const file = std::fopen(path_.c_str(), value == 0 ? "wb" : "r+b");
    const std::vector<char> bytes(kSize, value);
    std::fwrite(bytes.data(), 1, kSize, file);
    std::fclose(file);
  }
  char* data() const { return data_; }

  static constexpr std::size_t kSize = 1 << 16;

 private:
  const std::string path_;
  int file_;
  char* data_ = nullptr;
};

TEST(PlaceInFile, IsOfTheFileAsItIs) {
  const std::vector<char> heap(NamedFile::kSize);
  EXPECT_FALSE(PlaceInFile(heap.data(), heap.size()));
  const NamedFile file;
  EXPECT_FALSE(PlaceInFile(file.data(), NamedFile::kSize)) << "it was written just now";
  std::this_thread::sleep_for(std::chrono::milliseconds(2100));
  const auto whole = PlaceInFile(file.data(), NamedFile::kSize);
  if (!whole) GTEST_SKIP() << "before Linux 6.11";
  EXPECT_EQ(PlaceInFile(file.data(), NamedFile::kSize), whole);
  EXPECT_NE(PlaceInFile(file.data(), NamedFile::kSize - 64), whole);
  EXPECT_NE(PlaceInFile(file.data() + 64, NamedFile::kSize - 64), whole);
  EXPECT_FALSE(PlaceInFile(file.data() + 64, NamedFile::kSize)) << "beyond the mapping";
  file.Write(1);
  EXPECT_FALSE(PlaceInFile(file.data(), NamedFile::kSize));
  std::this_thread::sleep_for(std::chrono::milliseconds(2100));
  const auto changed = PlaceInFile(file.data(), NamedFile::kSize);
  EXPECT_TRUE(changed);
  EXPECT_NE(changed, whole);
  file.data()[NamedFile::kSize - 1] = 2;
  EXPECT_FALSE(PlaceInFile(file.data(), NamedFile::kSize)) << "the page is not that of the file";
}
#endif

}  // namespace
}  // namespace coreai
