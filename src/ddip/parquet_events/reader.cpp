#include "ddip/parquet_events/reader.h"

#include <arrow/util/key_value_metadata.h>
#include <fmt/format.h>
#include <parquet/column_reader.h>
#include <parquet/exception.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

#include "ddip/base/error.h"
#include "ddip/base/file.h"

namespace ddip::parquet_events {
namespace {

constexpr uint64_t kLargestGroup = uint64_t{1} << 30;  // bytes of one row group, decoded
constexpr uint64_t kKept = uint64_t{256} << 20;        // bytes of decoded row groups
constexpr uint64_t kLargestSide = 1 << 16;

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& why) {
  throw ConfigError(fmt::format("{}: {}", path.string(), why));
}

// The leaf of a list column; -1 if there is none.
int find_leaf(const ::parquet::SchemaDescriptor& schema, const std::string& name) {
  for (int index = 0; index < schema.num_columns(); ++index) {
    if (schema.GetColumnRoot(index)->name() == name) return index;
  }
  return -1;
}

// Numbers "1,256,256", each of them sensible; empty if the text is anything else.
std::vector<uint64_t> numbers(std::string_view text) {
  std::vector<uint64_t> found;
  const char *at = text.data(), *end = at + text.size();
  while (at != end) {
    uint64_t value = 0;
    const auto [stop, error] = std::from_chars(at, end, value);
    if (error != std::errc{} || value == 0 || value > kLargestSide) return {};
    found.push_back(value);
    if (stop == end) return found;
    if (*stop != ',') return {};
    at = stop + 1;
  }
  return {};
}

// All values of a list column in one row group, in `length` values a row. Stored numbers are `Type`'s.
template <typename Type, typename Value, typename Check>
std::vector<Value> read_lists(::parquet::ColumnReader& column, uint64_t rows, uint64_t length, const Check& check) {
  auto& typed = dynamic_cast<::parquet::TypedColumnReader<Type>&>(column);
  const int16_t present = column.descr()->max_definition_level();
  const uint64_t wanted = rows * length;
  std::vector<Value> values;
  values.reserve(wanted);
  constexpr int64_t kPiece = 1 << 16;
  std::vector<typename Type::c_type> piece(kPiece);
  std::vector<int16_t> definitions(kPiece), repetitions(kPiece);
  while (typed.HasNext()) {
    int64_t got = 0;
    const int64_t levels = typed.ReadBatch(kPiece, definitions.data(), repetitions.data(), piece.data(), &got);
    if (levels == 0) break;
    for (int64_t index = 0; index < levels; ++index) {
      if (definitions[static_cast<size_t>(index)] < present)
        throw ConfigError(fmt::format("row {} has an empty place where a number is expected", values.size() / length));
      // A row begins where the one before is complete, and nowhere else.
      if ((repetitions[static_cast<size_t>(index)] == 0) != (values.size() % length == 0) || values.size() == wanted)
        throw ConfigError(fmt::format("its lists have different lengths; expected {} numbers in each", length));
      values.push_back(check(piece[static_cast<size_t>(index)]));
    }
  }
  if (values.size() != wanted)
    throw ConfigError(fmt::format("it has {} numbers where {} rows of {} are expected", values.size(), rows, length));
  return values;
}

}  // namespace

ParquetEvents::ParquetEvents(std::filesystem::path path, data::Labels labels) : path_(std::move(path)) {
  open_regular(path_);  // for its one line where there is none
  try {
    file_ = ::parquet::ParquetFileReader::OpenFile(path_.string(), /*memory_map=*/false);
  } catch (const std::exception& error) {
    refuse(path_, fmt::format("it is no Parquet file: {}", error.what()));
  }
  try {
    check_columns(labels);
    find_shape();
    count_events();
  } catch (const ConfigError& error) {
    refuse(path_, error.what());
  } catch (const std::exception& error) {
    refuse(path_, fmt::format("its description is damaged: {}", error.what()));
  }
}

void ParquetEvents::check_columns(data::Labels labels) {
  const ::parquet::SchemaDescriptor& schema = *file_->metadata()->schema();
  image_column_ = find_leaf(schema, kImageColumn);
  label_column_ = find_leaf(schema, kLabelColumn);
  for (const auto& [name, index, type, expected] :
       {std::tuple{kImageColumn, image_column_, ::parquet::Type::FLOAT, "float32"},
        std::tuple{kLabelColumn, label_column_, ::parquet::Type::INT32, "uint8"}}) {
    if (index < 0 && index == label_column_ && name == std::string(kLabelColumn) && labels == data::Labels::optional)
      continue;
    if (index < 0) throw ConfigError(fmt::format("it has no column {:?}", std::string(name)));
    const ::parquet::ColumnDescriptor& column = *schema.Column(index);
    if (column.physical_type() != type || column.max_repetition_level() != 1)
      throw ConfigError(fmt::format(
          "its column {:?} holds {}; expected lists of {}", std::string(name),
          column.max_repetition_level() == 1 ? ::parquet::TypeToString(column.physical_type()) : "no lists", expected));
  }
}

void ParquetEvents::find_shape() {
  const auto metadata = file_->metadata();
  uint64_t rows = 0, images = 0, labels = 0;
  for (int number = 0; number < metadata->num_row_groups(); ++number) {
    const auto group = metadata->RowGroup(number);
    const int64_t own = group->num_rows(), image = group->ColumnChunk(image_column_)->num_values(),
                  label = has_labels() ? group->ColumnChunk(label_column_)->num_values() : image;
    if (own <= 0 || image <= 0 || label <= 0) throw ConfigError(fmt::format("its row group {} is empty", number));
    if (static_cast<uint64_t>(image) > kLargestGroup || static_cast<uint64_t>(label) > kLargestGroup)
      throw ConfigError(fmt::format("its row group {} claims {} numbers; expected at most {}", number,
                                    std::max(image, label), kLargestGroup));
    rows += static_cast<uint64_t>(own);
    images += static_cast<uint64_t>(image);
    labels += static_cast<uint64_t>(label);
  }
  if (rows == 0) throw ConfigError("it has no rows");
  if (images % rows != 0 || labels % rows != 0)
    throw ConfigError("its lists have different lengths: events of one file must have one size");
  const uint64_t values = images / rows, pixels = labels / rows;  // without labels: of one channel
  const auto& extra = metadata->key_value_metadata();
  if (extra && extra->Contains(kShapeKey)) {
    const std::string text = extra->Get(kShapeKey).ValueOr("");
    const std::vector<uint64_t> sizes = numbers(text);
    if (sizes.size() != 3 || sizes[1] * sizes[2] != pixels || sizes[0] * sizes[1] * sizes[2] != values)
      throw ConfigError(
          fmt::format("its {} says {:?}, its lists have {} and {} numbers", kShapeKey, text, values, pixels));
    shape_ = {rows, sizes[0], sizes[1], sizes[2]};
    return;
  }
  const auto side = static_cast<uint64_t>(std::lround(std::sqrt(static_cast<double>(pixels))));
  if (side * side != pixels || values % pixels != 0)
    throw ConfigError(
        fmt::format("its lists have {} and {} numbers, which is no square image; expected metadata {} "
                    "\"channels,height,width\"",
                    values, pixels, kShapeKey));
  shape_ = {rows, values / pixels, side, side};
}

void ParquetEvents::count_events() {
  const auto metadata = file_->metadata();
  begins_ = {0};
  for (int number = 0; number < metadata->num_row_groups(); ++number) {
    const auto rows = static_cast<uint64_t>(metadata->RowGroup(number)->num_rows());
    if (rows > kLargestGroup || rows * shape_.image_values() * sizeof(float) > kLargestGroup)
      throw ConfigError(
          fmt::format("its row group {} has {} events at once; write it with smaller row groups, of "
                      "1 GiB at most",
                      number, rows));
    begins_.push_back(begins_.back() + rows);
  }
}

ParquetEvents::Group ParquetEvents::decode(int number) const {
  const auto group = file_->RowGroup(number);
  const auto rows = static_cast<uint64_t>(group->metadata()->num_rows());
  Group decoded;
  decoded.number = number;
  decoded.images = read_lists<::parquet::FloatType, float>(*group->Column(image_column_), rows, shape_.image_values(),
                                                           [](float value) { return value; });
  if (!has_labels()) {
    decoded.labels.assign(rows * shape_.pixels(), 0);
    return decoded;
  }
  decoded.labels = read_lists<::parquet::Int32Type, uint8_t>(
      *group->Column(label_column_), rows, shape_.pixels(), [](int32_t value) {
        if (value < 0 || value > 255) throw ConfigError(fmt::format("it has a label {}; expected 0 to 255", value));
        return static_cast<uint8_t>(value);
      });
  return decoded;
}

std::string ParquetEvents::name_of(uint64_t event) const { return fmt::format("{}: event {}", path_.string(), event); }

void ParquetEvents::read(uint64_t event, float* image, uint8_t* labels) const {
  const auto after = std::upper_bound(begins_.begin(), begins_.end(), event);
  const int number = static_cast<int>(after - begins_.begin()) - 1;
  const std::lock_guard lock(mutex_);
  auto found = std::find_if(recent_.begin(), recent_.end(), [&](const Group& one) { return one.number == number; });
  if (found == recent_.end()) {
    try {
      recent_.push_front(decode(number));
    } catch (const ConfigError& error) {
      refuse(path_, error.what());
    } catch (const std::exception& error) {
      refuse(path_, fmt::format("its row group {} is damaged: {}", number, error.what()));
    }
    const uint64_t bytes = recent_.front().images.size() * sizeof(float) + recent_.front().labels.size();
    while (recent_.size() > 1 && recent_.size() * bytes > kKept) recent_.pop_back();
  } else {
    recent_.splice(recent_.begin(), recent_, found);
  }
  const Group& group = recent_.front();
  const uint64_t row = event - begins_[static_cast<size_t>(number)];
  std::copy_n(group.images.data() + row * shape_.image_values(), shape_.image_values(), image);
  std::copy_n(group.labels.data() + row * shape_.pixels(), shape_.pixels(), labels);
}

}  // namespace ddip::parquet_events
