#include "tensorflow/xla_call.h"

#include <charconv>

namespace hvd::tensorflow {

namespace {

// Reads numbers separated by single spaces; after the first that is wrong it only returns zeros.
class Words {
 public:
  explicit Words(std::string_view text) : rest_(text) {}

  template <typename Number>
  Number take() {
    const std::string_view word = rest_.substr(0, rest_.find(' '));
    Number value{};
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    is_good_ = is_good_ && error == std::errc{} && end == word.data() + word.size();
    rest_.remove_prefix(std::min(word.size() + 1, rest_.size()));
    return is_good_ ? value : Number{};
  }
  // A number of things that follow, each of at least two characters.
  std::size_t count() {
    const auto value = take<std::uint32_t>();
    is_good_ = is_good_ && value <= rest_.size();
    return is_good_ ? value : 0;
  }
  std::string_view rest() const { return rest_; }
  bool is_good() const { return is_good_; }

 private:
  std::string_view rest_;
  bool is_good_ = true;
};

XlaTensor take_tensor(Words& words) {
  XlaTensor tensor;
  const auto dtype = words.take<std::uint8_t>();
  if (dtype < kDataTypeCount) tensor.dtype = static_cast<DataType>(dtype);
  tensor.output_rows = words.take<std::int64_t>();
  tensor.shape.resize(words.count());
  for (std::int64_t& dimension : tensor.shape) dimension = words.take<std::int64_t>();
  return tensor;
}

}  // namespace

bool keeps_size(Collective kind) {
  return kind == Collective::kAllreduce || kind == Collective::kBroadcast;
}

Shape output_shape(const XlaTensor& tensor) {
  Shape shape = tensor.shape;
  if (!shape.empty()) shape[0] = tensor.output_rows;
  return shape;
}

std::optional<XlaCall> parse_xla_call(std::string_view text) {
  Words words(text);
  XlaCall call;
  call.kind = static_cast<Collective>(words.take<std::uint8_t>());
  call.op = words.take<std::int32_t>();
  call.prescale = words.take<double>();
  call.postscale = words.take<double>();
  call.root = words.take<std::int32_t>();
  call.process_set = words.take<std::int32_t>();
  call.grouped = words.take<int>() != 0;
  call.ticket_at = words.take<std::int32_t>();
  call.tensors.resize(words.count());
  for (XlaTensor& tensor : call.tensors) tensor = take_tensor(words);
  call.name = words.rest();
  if (!words.is_good() || call.tensors.empty() || call.kind > Collective::kReducescatter) {
    return std::nullopt;
  }
  return call;
}

std::optional<XlaQuestion> parse_xla_question(std::string_view text) {
  Words words(text);
  XlaQuestion question;
  question.kind = static_cast<XlaQuestion::Kind>(words.take<std::uint8_t>());
  question.what = words.take<std::int32_t>();
  question.process_set = words.take<std::int32_t>();
  if (!words.is_good() || question.kind > XlaQuestion::Kind::kIncluded) return std::nullopt;
  return question;
}

}  // namespace hvd::tensorflow
