#include <string>

#include "ops/attention/attention_op.h"
#include "ops/op_list.h"

namespace coreai {
namespace {

namespace names = schema::attention_nbits;
namespace paged = schema::paged_attention_nbits;
static_assert(names::kInputCount == 7 && names::kAttributeCount == 6, "the declaration changed");
static_assert(paged::kInputCount == 8 && paged::kAttributeCount == 3, "the declaration changed");

/// Throws OpError if there are no codes of that size.
unsigned BitsOf(const KernelInfo& info) {
  const std::int64_t bits = info.Int(names::kBits, names::kBitsDefault);
  if (bits != 8 && bits != 4) {
    Checker(info.op()).Fail("attribute bits is " + std::to_string(bits) + ", expected 8 or 4");
  }
  return static_cast<unsigned>(bits);
}

/// Attention to codes, one after the other or in blocks.
class CodedAttentionOp : public AttentionOp {
 public:
  CodedAttentionOp(const KernelInfo& info, DType dtype, Target target)
      : AttentionOp(info, dtype, FindAttentionNbits(target, dtype, BitsOf(info)), false),
        bits_(BitsOf(info)) {}

 protected:
  unsigned bits_;
};

class AttentionNbitsOp : public CodedAttentionOp {
 public:
  using CodedAttentionOp::CodedAttentionOp;

  void Compute(const KernelContext& context) const override {
    Run(context, {context.Input(names::kQueryInput), context.Input(names::kKeyCodesInput),
                  context.Input(names::kValueCodesInput), TensorView(),
                  context.Input(names::kAttnMaskInput), context.Input(names::kSinksInput), bits_,
                  context.Input(names::kKeyScalesInput), context.Input(names::kValueScalesInput)});
  }
};

class PagedAttentionNbitsOp : public CodedAttentionOp {
 public:
  using CodedAttentionOp::CodedAttentionOp;

  void Compute(const KernelContext& context) const override {
    Run(context, {context.Input(paged::kQueryInput), context.Input(paged::kKeyCodesInput),
                  context.Input(paged::kValueCodesInput), context.Input(paged::kBlockTableInput),
                  context.Input(paged::kAttnMaskInput), context.Input(paged::kSinksInput), bits_,
                  context.Input(paged::kKeyScalesInput), context.Input(paged::kValueScalesInput)});
  }
};

}  // namespace

// The last size follows from an attribute, which the inference of shapes does not see.
const OpDefinition kAttentionNbitsOp = Define<AttentionNbitsOp>(names::kComposite, NoShape);
const OpDefinition kPagedAttentionNbitsOp =
    Define<PagedAttentionNbitsOp>(schema::paged_attention_nbits::kComposite, NoShape);

}  // namespace coreai
