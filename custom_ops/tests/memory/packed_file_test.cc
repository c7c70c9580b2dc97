#include "memory/packed_file.h"

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <stdexcept>
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

PackedKey KeyOf(const std::vector<char>& bytes) {
  ContentHash hash;
  hash.Add(bytes.data(), bytes.size());
  return hash.key();
}

TEST(ContentHash, DiffersInEveryByteAndSize) {
  std::map<PackedKey, std::size_t> seen;
  std::size_t count = 0;
  for (std::size_t size = 0; size < 200; ++size) {
    std::vector<char> bytes(size);
    seen.emplace(KeyOf(bytes), count++);
    for (std::size_t i = 0; i < size; ++i) {
      bytes[i] = static_cast<char>(0x80);
      seen.emplace(KeyOf(bytes), count++);
      bytes[i] = 0;
    }
  }
  EXPECT_EQ(seen.size(), count);
}

TEST(ContentHash, DiffersInOrderAndBorders) {
  ContentHash one, other, joined;
  one.Add(1);
  one.Add(2);
  other.Add(2);
  other.Add(1);
  const std::uint64_t both[] = {1, 2};
  joined.Add(both, sizeof(both));
  EXPECT_NE(one.key(), other.key());
  EXPECT_NE(one.key(), joined.key());
}

#ifndef _WIN32
// A path in the temporary folder, without a file.
class Path {
 public:
  explicit Path(const char* name) : path_(::testing::TempDir() + name) { Remove(); }
  ~Path() { Remove(); }
  const std::string& text() const { return path_; }
  std::string Read() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void Write(const std::string& bytes) const { std::ofstream(path_, std::ios::binary) << bytes; }

 private:
  void Remove() const { std::remove(path_.c_str()); }
  std::string path_;
};

std::vector<char> Bytes(std::size_t size, char value) { return std::vector<char>(size, value); }

bool Has(PackedFile& file, const std::vector<char>& bytes) {
  const char* const found = file.Find(KeyOf(bytes), bytes.size());
  return found != nullptr && reinterpret_cast<std::uintptr_t>(found) % 64 == 0 &&
         std::memcmp(found, bytes.data(), bytes.size()) == 0;
}

bool Add(PackedFile& file, const std::vector<char>& bytes) {
  return file.Add(KeyOf(bytes), bytes.data(), bytes.size()) != nullptr && Has(file, bytes);
}

const std::vector<char> kSmall = Bytes(1, 1), kOdd = Bytes(5001, 2), kLarge = Bytes(1 << 20, 3);

TEST(PackedFile, KeepsWeightsForTheNextProcess) {
  const Path path("packed");
  EXPECT_EQ(PackedFile::Open(""), nullptr);
  {
    const auto file = PackedFile::Open(path.text());
    EXPECT_EQ(PackedFile::Open(path.text()), file);
    for (const auto& bytes : {kSmall, kOdd, kLarge}) {
      EXPECT_FALSE(Has(*file, bytes));
      EXPECT_TRUE(Add(*file, bytes));
    }
    EXPECT_EQ(file->Find(KeyOf(kOdd), kOdd.size() - 1), nullptr);
  }
  const std::string before = path.Read();
  const auto file = PackedFile::Open(path.text());
  for (const auto& bytes : {kSmall, kOdd, kLarge}) EXPECT_TRUE(Add(*file, bytes));
  EXPECT_EQ(path.Read(), before);
}

TEST(PackedFile, WeightsThatAreNotCompleteAreWrittenAgain) {
  const Path path("packed");
  for (const auto& bytes : {kSmall, kOdd}) EXPECT_TRUE(Add(*PackedFile::Open(path.text()), bytes));
  const std::string whole = path.Read();
  const std::size_t second = 64 + 64 + 64;  // its record, after that of one byte
  for (const std::size_t size : {second, second + 1, second + 64, whole.size() - 1}) {
    path.Write(whole.substr(0, size));
    const auto file = PackedFile::Open(path.text());
    EXPECT_TRUE(Has(*file, kSmall));
    EXPECT_FALSE(Has(*file, kOdd));
    EXPECT_TRUE(Add(*file, kLarge));
    EXPECT_TRUE(Add(*file, kOdd));
  }
  // A process that ended before it wrote the record.
  std::string without = whole;
  without.replace(second, 64, 64, '\0');
  path.Write(without);
  EXPECT_TRUE(Add(*PackedFile::Open(path.text()), kOdd));
  EXPECT_EQ(path.Read().substr(0, whole.size()), whole);
}

TEST(PackedFile, RecordsThatLieEndTheFile) {
  const Path path("packed");
  EXPECT_TRUE(Add(*PackedFile::Open(path.text()), kSmall));
  const std::string whole = path.Read();
  const std::size_t size_at = 64 + 24;
  for (const std::uint64_t size : {std::uint64_t{2} << 46, ~std::uint64_t{0}, std::uint64_t{2}}) {
    std::string lying = whole.substr(0, 64 + 64 + 1);
    lying.replace(size_at, 8, reinterpret_cast<const char*>(&size), 8);
    path.Write(lying);
    EXPECT_EQ(PackedFile::Open(path.text())->Find(KeyOf(kSmall), size), nullptr);
  }
}

TEST(PackedFile, OtherFilesAreLeftAlone) {
  const Path path("packed");
  for (const std::string& bytes : {std::string("text"), std::string(4096, '\0')}) {
    path.Write(bytes);
    EXPECT_THROW(PackedFile::Open(path.text()), std::runtime_error);
    EXPECT_EQ(path.Read(), bytes);
  }
  EXPECT_THROW(PackedFile::Open(path.text() + "/none"), std::runtime_error);
  EXPECT_THROW(PackedFile::Open(::testing::TempDir()), std::runtime_error);
}

TEST(PackedFile, ManyThreads) {
  const Path path("packed");
  const auto file = PackedFile::Open(path.text());
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (char value = 1; value < 40; ++value) EXPECT_TRUE(Add(*file, Bytes(1024, value)));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(path.Read().size(), 64 + 39 * (64 + 1024));
}

TEST(WeightSource, KeyIsThatOfTheContents) {
  const Path path("packed"), weights("packed_from");
  const auto packed = PackedFile::Open(path.text());
  const std::vector<char> other = Bytes(kLarge.size(), 4);
  const auto key_of = [&](const std::vector<char>& bytes, std::uint64_t number) {
    WeightSource source;
    source.Add(number);
    source.Add(bytes.data(), bytes.size());
    return source.KeyIn(packed.get());
  };
  EXPECT_EQ(key_of(kLarge, 1), key_of(std::vector<char>(kLarge), 1));
  EXPECT_NE(key_of(kLarge, 1), key_of(other, 1));
  EXPECT_NE(key_of(kLarge, 1), key_of(kLarge, 2));
  EXPECT_EQ(path.Read().size(), 64u) << "memory of no file has no place";
#ifdef __linux__
  for (const std::vector<char>* const bytes : {&kLarge, &other}) {
    weights.Write(std::string(bytes->begin(), bytes->end()));
    std::this_thread::sleep_for(std::chrono::milliseconds(2100));
    const int file = open(weights.text().c_str(), O_RDONLY);
    void* const mapped = mmap(nullptr, bytes->size(), PROT_READ, MAP_PRIVATE, file, 0);
    ASSERT_NE(mapped, MAP_FAILED);
    for (int i = 0; i < 2; ++i) {
      WeightSource source;
      source.Add(1);
      source.Add(mapped, bytes->size());
      EXPECT_EQ(source.KeyIn(packed.get()), key_of(*bytes, 1));
    }
    munmap(mapped, bytes->size());
    close(file);
  }
#endif
}

TEST(PackedMemory, IsFilledOnce) {
  const Path path("packed");
  int filled = 0;
  const auto fill = [&](char* to) {
    ++filled;
    std::memcpy(to, kOdd.data(), kOdd.size());
  };
  for (int i = 0; i < 2; ++i) {
    const PackedMemory memory(PackedFile::Open(path.text()), KeyOf(kOdd), kOdd.size(), fill);
    EXPECT_EQ(std::memcmp(memory.get(), kOdd.data(), kOdd.size()), 0);
  }
  EXPECT_EQ(filled, 1);
  const PackedMemory own(nullptr, KeyOf(kOdd), kOdd.size(), fill);
  EXPECT_EQ(filled, 2);
  EXPECT_EQ(std::memcmp(own.get(), kOdd.data(), kOdd.size()), 0);
}
#endif

}  // namespace
}  // namespace coreai
