#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/few_bits/few_bits.h"
#include "kernels/gather_mm/widen.h"
#include "kernels/norms/residual_add.h"
#include "memory/rank_group.h"
#include "memory/rank_transport.h"
#include "ops/checks.h"
#include "ops/item_pool.h"
#include "ops/op_list.h"

namespace coreai {
namespace {

static_assert(schema::all_reduce::kInputCount == 1 && schema::all_reduce::kAttributeCount == 2 &&
                  schema::all_gather::kInputCount == 1 && schema::all_gather::kAttributeCount == 2,
              "the declarations changed");

// What both have in common: parts of all ranks in one tensor, or one part of each process.
class Collective : public Op {
 public:
  Collective(const KernelInfo& info, DType dtype, RankGroup::Kind kind)
      : check_(info.op()),
        dtype_(dtype),
        kind_(kind),
        ranks_(Read(info, schema::all_reduce::kRanks, schema::all_reduce::kRanksDefault, 1)),
        rank_(Read(info, schema::all_reduce::kRank, schema::all_reduce::kRankDefault, 0)),
        transport_(info.transport()),
        timeout_(info.group_timeout()) {
    if (rank_ >= ranks_) {
      check_.Fail("attribute rank is " + std::to_string(rank_) + " of " + std::to_string(ranks_));
    }
    if (transport_ != nullptr && (transport_->rank != rank_ || transport_->ranks != ranks_)) {
      check_.Fail("the file is that of rank " + std::to_string(rank_) + " of " +
                  std::to_string(ranks_) + ", the process is rank " +
                  std::to_string(transport_->rank) + " of " + std::to_string(transport_->ranks));
    }
    if (!info.group().empty()) {
      group_ = RankGroup::Join(info.group(), rank_, ranks_, info.group_timeout());
    }
  }

 protected:
  /// The input. Each process has all parts, or that of its rank.
  TensorView Parts(const KernelContext& context) const {
    const TensorView parts = context.Input(schema::all_reduce::kPartsInput);
    check_.Require("parts", parts, dtype_);
    const bool has_rank = !parts.shape.empty();
    if (has_rank && parts.shape[0] == static_cast<std::int64_t>(ranks_)) return parts;
    if (!has_rank || parts.shape[0] != 1) {
      check_.Fail("input parts has shape " + ToString(parts.shape) + ", expected [1, ...] or [" +
                  std::to_string(ranks_) + ", ...]");
    }
    if (group_ == nullptr && transport_ == nullptr) {
      check_.Fail("input parts of shape " + ToString(parts.shape) + " is that of rank " +
                  std::to_string(rank_) + " of " + std::to_string(ranks_) +
                  ", and the session is in no group of ranks");
    }
    return parts;
  }

  /// Calls `use` with the parts, range by range.
  void Exchange(const TensorView& parts, const RankGroup::Use& use) const {
    const auto* const data = static_cast<const char*>(parts.data);
    const std::size_t bytes = PartBytes(parts);
    if (parts.shape[0] != static_cast<std::int64_t>(ranks_)) {
      if (transport_ == nullptr) return group_->Exchange(kind_, data, bytes, use);
      const ScratchMemory received = AllocateScratch(std::max(ranks_ * bytes, std::size_t{1}));
      char why[512] = "the transport has failed";
      if (transport_->exchange(static_cast<std::uint32_t>(kind_), data, bytes, received.get(),
                               timeout_, why, sizeof(why)) != 1) {
        check_.Fail(why);
      }
      return UseAll(received.get(), bytes, use);
    }
    UseAll(data, bytes, use);
  }

  std::size_t PartBytes(const TensorView& parts) const {
    return ElementCount(parts.shape, 1, parts.shape.size()) * SizeOf(dtype_);
  }

  /// Copies the first result to those of the other parts.
  static void Repeat(char* output, std::size_t bytes, std::int64_t parts) {
    for (std::int64_t i = 1; i < parts && bytes != 0; ++i) {
      std::memcpy(output + static_cast<std::size_t>(i) * bytes, output, bytes);
    }
  }

  Checker check_;
  DType dtype_;
  RankGroup::Kind kind_;
  std::size_t ranks_, rank_;
  std::shared_ptr<RankGroup> group_;
  const RankTransport* transport_;
  double timeout_;

 private:
  void UseAll(const char* parts, std::size_t bytes, const RankGroup::Use& use) const {
    std::vector<const char*> all(ranks_);
    for (std::size_t r = 0; r < ranks_; ++r) all[r] = parts + r * bytes;
    use(all, 0, bytes);
  }

  std::size_t Read(const KernelInfo& info, const char* name, std::int64_t absent,
                   std::int64_t least) const {
    const std::int64_t value = info.Int(name, absent);
    if (value < least || value > 64) {
      check_.Fail("attribute " + std::string(name) + " is " + std::to_string(value) +
                  ", expected " + std::to_string(least) + " to 64");
    }
    return static_cast<std::size_t>(value);
  }
};

class AllReduceOp : public Collective {
 public:
  AllReduceOp(const KernelInfo& info, DType dtype, Target target)
      : Collective(info, dtype, RankGroup::Kind::kAllReduce),
        widen_(FindWiden(target, dtype)),
        add_(FindResidualAdd(target, WideDType(dtype))),
        finish_(FindFinish(target)) {}

  void Compute(const KernelContext& context) const override {
    const TensorView parts = Parts(context);
    auto* const output = static_cast<char*>(context.Output(0, parts.shape));
    const bool is_wide = dtype_ == WideDType(dtype_);
    const ScratchMemory scratch = AllocateScratch(is_wide ? 1 : 2 * kBlock * sizeof(float));
    Exchange(parts, [&](const std::vector<const char*>& all, std::size_t first, std::size_t count) {
      if (is_wide) return Add(all, count, output + first);
      AddNarrow(all, count / SizeOf(dtype_), reinterpret_cast<float*>(scratch.get()),
                output + first);
    });
    Repeat(output, PartBytes(parts), parts.shape[0]);
  }

 private:
  static constexpr std::size_t kBlock =
      4096;  // elements of a narrow dtype that are added at a time

  // Rank by rank, so that all ranks have the same bits.
  void Add(const std::vector<const char*>& parts, std::size_t bytes, char* sum) const {
    if (bytes == 0) return;
    if (parts.size() == 1 && parts[0] != sum) std::memcpy(sum, parts[0], bytes);
    const char* before = parts[0];
    for (std::size_t r = 1; r < parts.size(); ++r) {
      add_(before, parts[r], bytes / SizeOf(dtype_), sum);
      before = sum;
    }
  }

  // Sums of 16 bits are rounded once.
  void AddNarrow(const std::vector<const char*>& parts, std::size_t elements, float* sum,
                 char* output) const {
    float* const next = sum + kBlock;
    for (std::size_t first = 0; first < elements; first += kBlock) {
      const std::size_t count = std::min(kBlock, elements - first), at = first * SizeOf(dtype_);
      widen_(parts[0] + at, count, sum);
      for (std::size_t r = 1; r < parts.size(); ++r) {
        widen_(parts[r] + at, count, next);
        add_(sum, next, count, sum);
      }
      finish_(sum, nullptr, count, dtype_, output + at);
    }
  }

  WidenKernel widen_;
  ResidualAddKernel add_;
  FinishKernel finish_;
};

class AllGatherOp : public Collective {
 public:
  AllGatherOp(const KernelInfo& info, DType dtype, Target)
      : Collective(info, dtype, RankGroup::Kind::kAllGather) {}

  void Compute(const KernelContext& context) const override {
    const TensorView parts = Parts(context);
    if (parts.shape.size() < 2) {
      check_.Fail("input parts has shape " + ToString(parts.shape) + ", expected rank 2 or higher");
    }
    Shape shape = parts.shape;
    // Beside a size of 0, any other is possible.
    if (shape.back() > INT64_MAX / static_cast<std::int64_t>(ranks_)) {
      check_.Fail("input parts of shape " + ToString(shape) + " is too large");
    }
    shape.back() *= static_cast<std::int64_t>(ranks_);
    auto* const output = static_cast<char*>(context.Output(0, shape));
    const std::size_t row = static_cast<std::size_t>(parts.shape.back()) * SizeOf(dtype_);
    Exchange(parts, [&](const std::vector<const char*>& all, std::size_t first, std::size_t count) {
      for (std::size_t r = 0; r < ranks_; ++r) {
        // A range may begin and end within a row.
        for (std::size_t done = 0; done < count;) {
          const std::size_t at = (first + done) % row, index = (first + done) / row;
          const std::size_t size = std::min(row - at, count - done);
          std::memcpy(output + (index * ranks_ + r) * row + at, all[r] + done, size);
          done += size;
        }
      }
    });
    Repeat(output, PartBytes(parts) * ranks_, parts.shape[0]);
  }
};

}  // namespace

const OpDefinition kAllReduceOp =
    Define<AllReduceOp>(schema::all_reduce::kComposite, ShapeOfFirstInput).InPlace();

const OpDefinition kAllGatherOp = Define<AllGatherOp>(schema::all_gather::kComposite, NoShape);

}  // namespace coreai
