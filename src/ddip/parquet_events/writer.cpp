#include "ddip/parquet_events/writer.h"

#include <arrow/io/interfaces.h>
#include <arrow/util/key_value_metadata.h>
#include <fmt/format.h>
#include <parquet/column_writer.h>

#include "ddip/base/error.h"
#include "ddip/base/file.h"
#include "ddip/parquet_events/reader.h"

namespace ddip::parquet_events {
namespace {

// Few, because one event that is read decodes its whole row group.
constexpr uint64_t kEventsPerGroup = 4;

using ::parquet::Repetition;
using ::parquet::schema::GroupNode;
using ::parquet::schema::NodePtr;
using ::parquet::schema::PrimitiveNode;

NodePtr list_of(const std::string& name, const NodePtr& element) {
  return GroupNode::Make(name, Repetition::REQUIRED, {GroupNode::Make("list", Repetition::REPEATED, {element})},
                         ::parquet::LogicalType::List());
}

std::shared_ptr<GroupNode> schema() {
  const NodePtr image = PrimitiveNode::Make("element", Repetition::REQUIRED, ::parquet::Type::FLOAT);
  const NodePtr label = PrimitiveNode::Make("element", Repetition::REQUIRED, ::parquet::LogicalType::Int(8, false),
                                            ::parquet::Type::INT32);
  return std::static_pointer_cast<GroupNode>(
      GroupNode::Make("schema", Repetition::REQUIRED, {list_of(kImageColumn, image), list_of(kLabelColumn, label)}));
}

template <typename Type, typename Value>
void write_lists(::parquet::ColumnWriter* column, const std::vector<Value>& values, uint64_t length) {
  std::vector<int16_t> definitions(values.size(), 1), repetitions(values.size(), 1);
  for (size_t begin = 0; begin < values.size(); begin += length) repetitions[begin] = 0;
  auto& typed = dynamic_cast<::parquet::TypedColumnWriter<Type>&>(*column);
  typed.WriteBatch(static_cast<int64_t>(values.size()), definitions.data(), repetitions.data(), values.data());
  typed.Close();
}

}  // namespace

// Arrow's writer over our file, which appears only when it is whole.
class ParquetWriter::File : public ::arrow::io::OutputStream {
 public:
  explicit File(const std::filesystem::path& path) : file_(path) {}

  ::arrow::Status Write(const void* data, int64_t bytes) override {
    try {
      file_.write({static_cast<const std::byte*>(data), static_cast<size_t>(bytes)}, at_);
    } catch (const std::exception& error) {
      return ::arrow::Status::IOError(error.what());
    }
    at_ += static_cast<uint64_t>(bytes);
    return ::arrow::Status::OK();
  }
  ::arrow::Status Close() override {
    closed_ = true;
    return ::arrow::Status::OK();
  }
  bool closed() const override { return closed_; }
  ::arrow::Result<int64_t> Tell() const override { return static_cast<int64_t>(at_); }

  void publish() { file_.publish(); }

 private:
  NewFile file_;
  uint64_t at_ = 0;
  bool closed_ = false;
};

ParquetWriter::ParquetWriter(const std::filesystem::path& path, const data::EventShape& shape)
    : shape_(shape), file_(std::make_shared<File>(path)) {
  ::parquet::WriterProperties::Builder properties;
  properties.compression(::parquet::Compression::ZSTD)->compression_level(1);
  auto extra = std::make_shared<::arrow::KeyValueMetadata>();
  extra->Append(kShapeKey, fmt::format("{},{},{}", shape.channels, shape.height, shape.width));
  writer_ = ::parquet::ParquetFileWriter::Open(file_, schema(), properties.build(), extra);
}

void ParquetWriter::write(std::span<const float> image, std::span<const uint8_t> labels) {
  images_.insert(images_.end(), image.begin(), image.end());
  labels_.insert(labels_.end(), labels.begin(), labels.end());
  if (labels_.size() >= kEventsPerGroup * shape_.pixels()) flush();
}

void ParquetWriter::flush() {
  if (labels_.empty()) return;
  ::parquet::RowGroupWriter* group = writer_->AppendRowGroup();
  write_lists<::parquet::FloatType>(group->NextColumn(), images_, shape_.image_values());
  write_lists<::parquet::Int32Type>(group->NextColumn(), labels_, shape_.pixels());
  group->Close();
  images_.clear();
  labels_.clear();
}

void ParquetWriter::close() {
  flush();
  writer_->Close();
  file_->publish();
}

}  // namespace ddip::parquet_events
