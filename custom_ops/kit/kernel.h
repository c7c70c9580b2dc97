// What a kernel of your own includes: tensors, attributes, threads, and dispatch by dtype.
//
//   template <class T>
//   class ScaleAdd {
//    public:
//     explicit ScaleAdd(const coreai::Attributes& attributes)
//         : factor_(attributes.Float("factor", 1.0f)) {}
//
//     void Compute(const coreai::Context& context) const {
//       const auto x = context.Input<T>(0), y = context.Input<T>(1);
//       T* out = context.Output<T>(0, x.shape);
//       context.ParallelFor(x.size, 4096, [&](std::int64_t begin, std::int64_t end) {
//         for (std::int64_t i = begin; i < end; ++i) out[i] = T(x[i] * factor_ + y[i]);
//       });
//     }
//
//    private:
//     float factor_;
//   };
//   COREAI_KERNEL(ScaleAdd)
//
// `T` is float, coreai::Half, coreai::BFloat16 or double: each dtype of the composite's
// declaration. `coreai::declared` has the names and defaults of its inputs and attributes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "declaration.h"
#include "kit/floats.h"
#include "kit/math.h"
#include "ort/error.h"
#include "ort/kernel_context.h"
#include "ort/kernel_info.h"
#include "ort/op.h"

namespace coreai {

/// Attributes of a node, read once: Float, Int, String, Ints, each with its default.
using Attributes = KernelInfo;

/// ONNX's number of the element type `T`.
template <class T>
constexpr ONNXTensorElementDataType OnnxTypeOf() {
  if constexpr (std::is_same_v<T, float>) return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
  if constexpr (std::is_same_v<T, double>) return ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE;
  if constexpr (std::is_same_v<T, Half>) return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16;
  if constexpr (std::is_same_v<T, BFloat16>) return ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16;
  if constexpr (std::is_same_v<T, bool>) return ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL;
  if constexpr (std::is_same_v<T, std::int8_t>) return ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8;
  if constexpr (std::is_same_v<T, std::uint8_t>) return ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8;
  if constexpr (std::is_same_v<T, std::int16_t>) return ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16;
  if constexpr (std::is_same_v<T, std::int32_t>) return ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32;
  if constexpr (std::is_same_v<T, std::int64_t>) return ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;
}

/// An input: contiguous elements in row-major order. An absent input has no data.
template <class T>
struct Tensor {
  const T* data = nullptr;
  Shape shape;
  std::int64_t size = 0;

  explicit operator bool() const { return data != nullptr; }
  const T& operator[](std::int64_t i) const { return data[i]; }
  std::int64_t rank() const { return static_cast<std::int64_t>(shape.size()); }
  /// Size of an axis; -1 is the last one.
  std::int64_t dim(std::int64_t axis) const {
    return shape.at(static_cast<std::size_t>(axis < 0 ? axis + rank() : axis));
  }
};

/// One run of a node.
class Context {
 public:
  explicit Context(const KernelContext& context) : context_(context) {}

  /// The input at `index`. Throws OpError if it is absent or of another type.
  template <class T>
  Tensor<T> Input(std::size_t index) const {
    const Tensor<T> input = OptionalInput<T>(index);
    if (!context_.Input(index)) throw OpError("input " + NameOf(index) + " is missing");
    return input;
  }

  /// The input at `index`, or no data if the node omits it. Throws OpError if it has another type.
  template <class T>
  Tensor<T> OptionalInput(std::size_t index) const {
    const TensorView view = context_.Input(index);
    Tensor<T> tensor;
    if (!view) return tensor;
    if (view.type != OnnxTypeOf<T>()) {
      throw OpError("input " + NameOf(index) + " is of ONNX type " + std::to_string(view.type) +
                    ", the kernel reads " + std::to_string(OnnxTypeOf<T>()));
    }
    static const T nothing{};  // an empty tensor is present, though it has no memory
    tensor.data = view.data == nullptr ? &nothing : static_cast<const T*>(view.data);
    tensor.shape = view.shape;
    tensor.size = 1;
    for (const std::int64_t size : view.shape) tensor.size *= size;
    return tensor;
  }

  /// Whether the node has the input at `index`.
  bool Has(std::size_t index) const { return static_cast<bool>(context_.Input(index)); }

  /// The element type of an input that may have several.
  ONNXTensorElementDataType Type(std::size_t index) const { return context_.Input(index).type; }

  /// Allocates the output at `index`; its elements are not initialized.
  template <class T>
  T* Output(std::size_t index, const Shape& shape) const {
    return static_cast<T*>(context_.Output(index, shape));
  }

  /// Calls `body(begin, end)` for ranges of [0, count), each of about `grain` items, on
  /// onnxruntime's threads. `body` must not throw.
  template <class Body>
  void ParallelFor(std::int64_t count, std::int64_t grain, const Body& body) const {
    const std::int64_t step = grain < 1 ? 1 : grain;
    const auto blocks = static_cast<std::size_t>((count + step - 1) / step);
    context_.ParallelFor(blocks, [&](std::size_t block) {
      const std::int64_t begin = static_cast<std::int64_t>(block) * step;
      body(begin, begin + step < count ? begin + step : count);
    });
  }

 private:
  static std::string NameOf(std::size_t index) {
    return index < declared::kInputCount ? declared::kInputs[index].name : std::to_string(index);
  }

  const KernelContext& context_;
};

/// Calls `body` with a value of the one of the types `Ts` that `type` is. Throws OpError if it is
/// none of them.
///
///   Dispatch<std::int32_t, std::int64_t>(context.Type(1), [&](auto zero) {
///     const auto rows = context.Input<decltype(zero)>(1);
///   });
template <class... Ts, class Body>
void Dispatch(ONNXTensorElementDataType type, const Body& body) {
  const bool matched = ((type == OnnxTypeOf<Ts>() && (body(Ts{}), true)) || ...);
  if (!matched) throw OpError("an input is of ONNX type " + std::to_string(type));
}

/// The op that runs a kernel class.
template <class Kernel>
class KernelOp : public Op {
 public:
  explicit KernelOp(const KernelInfo& info) : kernel_(info) {}
  void Compute(const KernelContext& context) const override { kernel_.Compute(Context(context)); }

 private:
  Kernel kernel_;
};

/// Creates the kernel of a node for one of the declared dtypes; the others are not compiled.
template <template <class> class Kernel>
std::unique_ptr<Op> CreateForDType(const KernelInfo& info, DType dtype) {
  std::unique_ptr<Op> op;
  const auto create = [&](auto zero, auto constant) {
    if constexpr ((declared::kDTypes >> static_cast<unsigned>(decltype(constant)::value) & 1u) !=
                  0) {
      using Class = Kernel<decltype(zero)>;
      if (dtype == decltype(constant)::value) op = std::make_unique<KernelOp<Class>>(info);
    }
  };
  create(float{}, std::integral_constant<DType, DType::kFloat32>{});
  create(Half{}, std::integral_constant<DType, DType::kFloat16>{});
  create(BFloat16{}, std::integral_constant<DType, DType::kBFloat16>{});
  create(double{}, std::integral_constant<DType, DType::kFloat64>{});
  if (op == nullptr) throw OpError("the composite does not declare this dtype");
  return op;
}

/// Defined by COREAI_KERNEL.
std::unique_ptr<Op> CreateDeclaredKernel(const KernelInfo& info, DType dtype);

}  // namespace coreai

/// Makes a class template the kernel of the declared composite. Use it once, in no namespace.
#define COREAI_KERNEL(Class)                                                               \
  std::unique_ptr<coreai::Op> coreai::CreateDeclaredKernel(const coreai::KernelInfo& info, \
                                                           coreai::DType dtype) {          \
    return coreai::CreateForDType<Class>(info, dtype);                                     \
  }
