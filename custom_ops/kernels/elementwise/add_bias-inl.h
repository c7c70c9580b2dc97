// A bias, and the activation after it. Included once per target.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_ADD_BIAS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_ADD_BIAS_INL_H_
#undef COREAI_KERNELS_ADD_BIAS_INL_H_
#else
#define COREAI_KERNELS_ADD_BIAS_INL_H_
#endif

#include "kernels/elementwise/activations-inl.h"
#include "kernels/elementwise/add_bias.h"
#include "kernels/select-inl.h"
#include "simd/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

template <typename T>
bool IsZero(const T* numbers, size_t count) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(numbers);
  for (size_t i = 0; i < count * sizeof(T); ++i) {
    if (bytes[i] != 0) return false;
  }
  return true;
}

template <class Act, typename T>
void AddBiasRows(const AddBias& a) {
  const hn::ScalableTag<Wide<T>> d;
  const auto* in = static_cast<const T*>(a.input);
  const auto* bias = static_cast<const T*>(a.bias);
  auto* out = static_cast<T*>(a.output);
  const Act act;
  if (a.columns < hn::Lanes(d) && IsZero(bias, a.columns)) {  // one row of all of them
    ForEachVector(d, a.rows * a.columns, [&](size_t c, auto lanes) COREAI_INLINE_LAMBDA {
      lanes.Store(act(d, hn::Add(lanes.Load(d, in + c), hn::Zero(d))), d, out + c);
    });
    return;
  }
  for (size_t row = 0; row < a.rows; ++row, in += a.columns, out += a.columns) {
    ForEachVector(d, a.columns, [&](size_t c, auto lanes) COREAI_INLINE_LAMBDA {
      const auto sum = hn::Add(lanes.Load(d, in + c), lanes.Load(d, bias + c));
      lanes.Store(act(d, sum), d, out + c);
    });
  }
}

template <class Act>
AddBiasKernel SelectAddBiasRows(DType dtype) {
  return SelectByDType(dtype,
                       [](auto zero) -> AddBiasKernel { return AddBiasRows<Act, decltype(zero)>; });
}

inline AddBiasKernel SelectAddBias(DType dtype, Activation activation) {
  switch (activation) {
    case Activation::kNone:
      return SelectAddBiasRows<NoActivation>(dtype);
    case Activation::kSilu:
      return SelectAddBiasRows<Silu>(dtype);
    case Activation::kGelu:
      return SelectAddBiasRows<Gelu>(dtype);
    case Activation::kGeluTanh:
      return SelectAddBiasRows<GeluTanh>(dtype);
    case Activation::kSigmoid:
      return SelectAddBiasRows<Logistic>(dtype);
    case Activation::kTanh:
      return SelectAddBiasRows<Tanh>(dtype);
    case Activation::kExp:
      return SelectAddBiasRows<Exp>(dtype);
  }
  return nullptr;
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
