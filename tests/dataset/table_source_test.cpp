#include <gmock/gmock.h>

#include "error_of.h"
#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/dataset/image_uri.h"
#include "millrace/io/parquet_writer.h"
#include "millrace/loader/data_plan.h"
#include "millrace/loader/sources.h"
#include "millrace/loader/transform_sample.h"
#include "rows_of.h"
#include "temp_archives.h"

namespace millrace {
namespace {

using test::error_of;
using test::manifest_of;
using test::rows_of;
using test::TempFolder;
using testing::ElementsAre;
using testing::HasSubstr;
using Type = SourceConfig::Type;
using Expressions = std::map<std::string, std::string>;

const std::string golden = std::string(MILLRACE_TEST_DATA) + "/sources/";

SourceConfig config_of(Type type, const std::string& path) {
  SourceConfig config;
  config.type = type;
  config.path = {path};
  return config;
}

RawSample first_sample(const SourceConfig& config) {
  const Manifest manifest = manifest_of(config);
  return std::get<RawSample>(*make_source(config, manifest, 64)->open({0, 0, 1}, 0)->next());
}

// As the loader sees them.
std::vector<std::string> judged_rows_of(const SourceConfig& config) {
  const Manifest manifest = manifest_of(config);
  const Filter filter(config.filters);
  TransformPipeline transforms;
  transforms.filter = &filter;
  std::vector<std::string> rows;
  const auto source = make_source(config, manifest, 64);
  const auto reader = source->open({0, 0, 1}, 0);
  while (auto row = reader->next()) {
    if (auto* const rejected = std::get_if<Rejected>(&*row)) judge_rejected(*rejected, transforms);
    const auto* const sample = std::get_if<RawSample>(&*row);
    const auto refusal = sample ? judge_metadata(*sample, transforms) : std::nullopt;
    rows.push_back(refusal ? sample->ref.id + ":" + to_string(refusal->first) : test::show(*row));
  }
  return rows;
}

// ---- Parquet -------------------------------------------------------------------------------------------------------

TEST(ParquetSource, BringsTheBytesAndWhatFiltersAskFor) {
  SourceConfig config = config_of(Type::parquet, golden + "00007.parquet");
  RawSample sample = first_sample(config);
  EXPECT_EQ(sample.image.substr(0, 4), "J0J0");
  EXPECT_EQ(sample.image_uri, "");
  EXPECT_EQ(sample.json, "") << "nobody asked";
  config.filters = {{"punsafe", "<0.5"}, {"width", ">=200"}, {"status", "success"}, {"nowhere", "1"}};
  sample = first_sample(config);
  EXPECT_EQ(sample.json, R"({"punsafe":0.0,"status":"success","width":200})");
  EXPECT_EQ(Filter(Expressions{{"width", ">=200 and <201"}}).judge(sample.json), Filter::Verdict::keep);
}

TEST(ParquetSource, ViewsAreImagesAndCaptionsAndDecimalsNumbersToFilters) {
  SourceConfig config =
      config_of(Type::parquet, std::string(MILLRACE_TEST_DATA) + "/io/parquet/views_decimals.parquet");
  config.filters = {{"score", ">0"}};
  const RawSample sample = first_sample(config);
  EXPECT_EQ(sample.image, "J\xff");
  EXPECT_EQ(sample.caption, "short");
  EXPECT_EQ(sample.json, R"({"score":0.25})");
}

TEST(ParquetSource, DictionariesAreImagesPlacesAndCaptions) {
  SourceConfig config = config_of(Type::parquet, std::string(MILLRACE_TEST_DATA) + "/io/parquet/dictionaries.parquet");
  EXPECT_THAT(test::rows_of(config), ElementsAre("dictionaries/0=a cat", "dictionaries/1:missing_image",
                                                 "dictionaries/2:missing_caption", "dictionaries/3=a cat"));
  EXPECT_EQ(first_sample(config).image, "J\xff");
  config.columns.image = "place";
  EXPECT_THAT(first_sample(config).image_uri, HasSubstr("0.jpg"));
  config.columns.image = "class";
  EXPECT_THAT(error_of([&] { manifest_of(config); }).what(), HasSubstr("neither bytes nor text"));
}

TEST(ParquetSource, ExtensionTypesAreCaptionsKeysAndFilterValues) {
  SourceConfig config = config_of(Type::parquet, std::string(MILLRACE_TEST_DATA) + "/io/parquet/extensions.parquet");
  config.columns.caption = "json";
  config.columns.key = "uuid";
  config.filters = {{"bool8", "1"}};
  EXPECT_THAT(test::rows_of(config),
              ElementsAre("extensions/00010203-0405-0607-0809-0a0b0c0d0e0f=a hen",
                          "extensions/ffffffff-ffff-ffff-ffff-ffffffffffff=a hen", "extensions/2:missing_caption"));
  EXPECT_EQ(first_sample(config).json, R"({"bool8":1})");
  config.columns.key.reset();
  for (const char* lists : {"jsons", "dictionaries"}) {
    config.columns.caption = lists;
    EXPECT_THAT(test::rows_of(config),
                ElementsAre("extensions/0=a hen|a hen", "extensions/1:missing_caption", "extensions/2:missing_caption"))
        << lists;
  }
}

TEST(ParquetSource, NumbersOf64BitsAreNumbersToFilters) {
  SourceConfig config = config_of(Type::parquet, std::string(MILLRACE_TEST_DATA) + "/io/parquet/rows.parquet");
  config.columns.caption = "category";
  config.filters = {{"huge", ">=18446744073709551615"}, {"category", "!= x"}};
  EXPECT_EQ(first_sample(config).json, R"({"category":"cat","huge":18446744073709551615})");
  const auto rows = judged_rows_of(config);
  EXPECT_EQ(rows.at(0), "rows/0=cat");
  EXPECT_EQ(rows.at(1), "rows/1:filtered");
}

TEST(ParquetSource, NamedColumnsWinAndAreChecked) {
  SourceConfig config = config_of(Type::parquet, golden + "00007.parquet");
  config.columns.caption = "status";
  EXPECT_EQ(first_sample(config).caption, "success");
  config.columns.caption = "titel";
  const Error error = error_of([&] { manifest_of(config); });
  EXPECT_EQ(error.exit(), Exit::usage);
  EXPECT_THAT(error.what(), HasSubstr("data.train.columns.caption = titel"));
  EXPECT_THAT(error.hint(), HasSubstr("caption"));
  config.columns = {};
  config.columns.image = "width";
  EXPECT_THAT(error_of([&] { manifest_of(config); }).what(), HasSubstr("neither bytes nor text"));
}

TEST(ParquetSource, ACaptionIsOneText) {
  SourceConfig config = config_of(Type::parquet, std::string(MILLRACE_TEST_DATA) + "/io/parquet/rows.parquet");
  config.columns.caption = "tags";
  const Error error = error_of([&] { manifest_of(config); });
  EXPECT_EQ(error.exit(), Exit::usage);
  EXPECT_THAT(error.what(), HasSubstr("column tags holds several values a row"));
}

TEST(ParquetSource, ListsOfTextsAreSeveralCaptions) {
  SourceConfig config = config_of(Type::parquet, std::string(MILLRACE_TEST_DATA) + "/io/parquet/captions.parquet");
  config.columns.caption = "texts";
  EXPECT_THAT(test::rows_of(config), ElementsAre("captions/0=a hen|une \"poule\" é", "captions/1:missing_caption",
                                                 "captions/2:missing_caption", "captions/3=one"));
  config.columns.caption = std::vector<std::string>{"pair", "large"};
  EXPECT_THAT(test::rows_of(config),
              ElementsAre("captions/0=p|q|x", "captions/1=v|w|y", "captions/2=r|s|z", "captions/3=t|u"));
  config.columns.caption = "odd";
  EXPECT_THAT(test::rows_of(config),
              ElementsAre("captions/0=caf\uFFFD", "captions/1=b|c", "captions/2=d", "captions/3=e"));
}

TEST(ParquetSource, ACaptionThatIsNotUtf8IsReplacedInPart) {
  TempFolder folder;
  ParquetWriter writer(folder.path("a.parquet"), {{"jpg", ParquetField::Type::bytes}, {"caption"}, {"license"}});
  writer.write({std::string("J"), std::string("a caf\xE9"), std::string("\xFE")});
  writer.commit();
  SourceConfig config = config_of(Type::parquet, folder.path("a.parquet"));
  config.filters = {{"license", "free"}};
  const RawSample sample = first_sample(config);
  EXPECT_EQ(sample.caption, "a caf\uFFFD");
  EXPECT_EQ(sample.json, "{\"license\":\"\uFFFD\"}");
}

// img2dataset lays tables with addresses beside its tars: reading images from there would mean fetching them again.
TEST(ParquetSource, AddressesAreOnlyFetchedWhereTheColumnIsNamed) {
  TempFolder folder;
  ParquetWriter writer(folder.path("meta.parquet"), {{"url"}, {"caption"}});
  writer.write({std::string("http://127.0.0.1:1/a.jpg"), std::string("a")});
  writer.commit();
  SourceConfig config = config_of(Type::parquet, folder.path("meta.parquet"));
  const Error error = error_of([&] { manifest_of(config); });
  EXPECT_THAT(error.what(), HasSubstr("no column with the bytes of images"));
  EXPECT_THAT(error.hint(), HasSubstr("url holds addresses: `millrace download` makes archives of them"));
  config.columns.image = "url";
  EXPECT_EQ(first_sample(config).image_uri, "http://127.0.0.1:1/a.jpg");
}

TEST(ParquetSource, ARowWithoutAnImageSaysWhereToLookForIt) {
  const auto detail_of = [](const std::string& file, std::uint64_t row) {
    const SourceConfig config = config_of(Type::parquet, golden + file);
    const Manifest manifest = manifest_of(config);
    const auto source = make_source(config, manifest, 64);
    return std::get<Rejected>(*source->open({0, 0, 1}, row)->next()).detail;
  };
  EXPECT_EQ(detail_of("00007.parquet", 3), "column jpg is empty");
  EXPECT_THAT(detail_of("hub.parquet", 2), HasSubstr("column image has no bytes (where Hugging Face"));
}

TEST(ParquetSource, ABrokenFileIsOneRowWhoeverReads) {
  TempFolder folder;
  const std::string whole = read_file(golden + "00007.parquet");
  folder.write("a.parquet", whole.substr(0, whole.size() - 20));
  folder.write("b.parquet", whole);
  std::string damaged = whole;
  const std::size_t image = whole.find("J18J18");  // the first of the third row group, behind its page's header
  ASSERT_NE(image, std::string::npos);
  for (std::size_t i = image - 40; i < image; ++i) damaged[i] = static_cast<char>(~damaged[i]);
  folder.write("c.parquet", damaged);
  const SourceConfig config = config_of(Type::parquet, folder.path(""));
  const Manifest manifest = manifest_of(config);
  const auto source = make_source(config, manifest, 64);
  EXPECT_THAT(rows_of(*source, {0, 0, 1}), ElementsAre("a:archive_error"));
  EXPECT_THAT(rows_of(*source, {0, 0, 1}, 1), ElementsAre());
  EXPECT_EQ(rows_of(*source, {1, 0, 1}).size(), 40u);
  for (std::uint32_t splits = 1; splits <= 3; ++splits) {
    std::vector<std::string> errors, rows;
    for (std::uint32_t split = 0; split < splits; ++split) {
      for (const std::string& row : rows_of(*source, {2, split, splits}))
        (row == "c:archive_error" ? errors : rows).push_back(row);
    }
    EXPECT_EQ(errors.size(), 1u) << splits;
    EXPECT_EQ(rows.size(), 18u) << splits;
  }
  EXPECT_THAT(rows_of(*source, {2, 0, 1}, 18), ElementsAre("c:archive_error"));
  EXPECT_THAT(rows_of(*source, {2, 0, 1}, 19), ElementsAre());
}

TEST(ParquetSource, ADirectoryIsItsParquetFiles) {
  const Manifest manifest = manifest_of(config_of(Type::parquet, golden));
  ASSERT_EQ(manifest.archives.size(), 3u);
  EXPECT_EQ(manifest.archives[0].name, "00007");
  EXPECT_TRUE(manifest.archives[0].seekable);
}

TEST(ParquetSource, LimitAndStripesCountItsRows) {
  SourceConfig config = config_of(Type::parquet, golden);
  config.limit = 50;
  const Manifest manifest = manifest_of(config);
  ASSERT_EQ(manifest.archives.size(), 2u);
  EXPECT_EQ(manifest.archives[1].limit, 10u);
  EXPECT_EQ(rows_of(*make_source(config, manifest, 64), {1, 1, 3}).size(), 3u);
  config.limit.reset();
  const DataPlan plan = make_data_plan(config, {}, 64);
  EXPECT_EQ(plan.stripes.stripes, 64u);
}

// As download.format=parquet and img2dataset write rows whose download failed.
TEST(ParquetSource, ARowThatLacksSomethingIsFilteredWhereAFilterDropsIt) {
  TempFolder folder;
  ParquetWriter writer(folder.path("a.parquet"), {{"jpg", ParquetField::Type::bytes}, {"caption"}, {"status"}});
  writer.write({std::string("J"), std::string("a"), std::string("success")});
  writer.write({Cell(), std::string("b"), std::string("failed_to_download")});
  writer.write({Cell(), std::string("c"), std::string("success")});
  writer.write({std::string("J"), Cell(), std::string("failed_to_download")});
  writer.write({std::string("J"), Cell(), std::string("success")});
  writer.commit();
  SourceConfig config = config_of(Type::parquet, folder.path("a.parquet"));
  EXPECT_THAT(judged_rows_of(config), ElementsAre("a/0=a", "a/1:missing_image", "a/2:missing_image",
                                                  "a/3:missing_caption", "a/4:missing_caption"));
  config.filters = {{"status", "success"}};
  EXPECT_THAT(judged_rows_of(config),
              ElementsAre("a/0=a", "a/1:filtered", "a/2:missing_image", "a/3:filtered", "a/4:missing_caption"));
}

TEST(ParquetSource, AFilterHoldsForNoList) {
  SourceConfig config = config_of(Type::parquet, std::string(MILLRACE_TEST_DATA) + "/io/parquet/rows.parquet");
  config.filters = {{"tags", "!= x"}};
  EXPECT_EQ(first_sample(config).json, R"({"tags":null})");
}

// ---- lists ---------------------------------------------------------------------------------------------------------

TEST(ListSource, SeveralCaptions) {
  TempFolder folder;
  folder.write("list.jsonl",
               "{\"path\": \"0.jpg\", \"text\": [\"one\", \"two\"], \"long\": \"three\"}\n"
               "{\"path\": \"1.jpg\", \"text\": \"[4, 5]\"}\n"
               "{\"path\": \"2.jpg\", \"text\": {\"en\": \"six\"}}\n");
  SourceConfig config = config_of(Type::csv, folder.path("list.jsonl"));
  EXPECT_THAT(test::rows_of(config), ElementsAre("list/0=one|two", "list/1=[4, 5]", "list/2:missing_caption"));
  config.columns.caption = std::vector<std::string>{"long", "text"};
  EXPECT_THAT(test::rows_of(config), ElementsAre("list/0=three|one|two", "list/1=[4, 5]", "list/2:missing_caption"));
}

// As train-autoencoder reads them.
TEST(ListSource, ImagesAloneNeedNoCaption) {
  TempFolder folder;
  folder.write("a.csv", "id,path,width\na,0.jpg,64\nb,,64\nc,2.jpg,8\n");
  for (const auto type : {Type::csv, Type::class_labels}) {
    SourceConfig config = config_of(type, folder.path("a.csv"));
    config.needs_captions = false;
    config.columns.key = "id";
    config.filters = {{"width", ">=10"}};
    EXPECT_THAT(judged_rows_of(config), ElementsAre("a/a=", "a/b:missing_image", "a/c:filtered"));
  }
}

TEST(ListSource, PathsAreRelativeToTheListOrAbsoluteOrAddresses) {
  TempFolder folder;
  folder.write("list.csv",
               "id,image,caption,width\n"
               "a,sub/0.jpg,\"one, two\",640\n"
               "b,/abs/1.jpg,,\n"
               "c,https://h/2.jpg,three,30\n"
               "d,,no image,30\n"
               "e,file:///f/3.png,four\n");
  SourceConfig config = config_of(Type::csv, folder.path("list.csv"));
  config.filters = {{"width", ">=10"}};
  const Manifest manifest = manifest_of(config);
  const auto reader = make_source(config, manifest, 64)->open({0, 0, 1}, 0);
  RawSample sample = std::get<RawSample>(*reader->next());
  EXPECT_EQ(sample.ref.id, "list/0");
  EXPECT_EQ(sample.caption, "one, two");
  EXPECT_EQ(sample.image, "");
  EXPECT_EQ(sample.image_uri, folder.path("sub/0.jpg"));
  EXPECT_EQ(sample.json, R"({"width":640})") << "a number for the filter";
  sample = std::get<RawSample>(*reader->next());
  EXPECT_EQ(sample.image_uri, "/abs/1.jpg");
  EXPECT_EQ(sample.caption, "");
  EXPECT_EQ(sample.json, R"({"width":null})");
  EXPECT_EQ(std::get<RawSample>(*reader->next()).image_uri, "https://h/2.jpg");
  EXPECT_EQ(resolve_uri("0.jpg", "file://" + folder.path("list.csv")), folder.path("0.jpg"));
  EXPECT_EQ(resolve_uri("0.jpg", "s3://b/set/list.parquet"), "s3://b/set/0.jpg");
  EXPECT_EQ(resolve_uri(" https://h/a b.jpg\r", "x.csv"), "https://h/a b.jpg");
  EXPECT_EQ(test::show(*reader->next()), "list/3:missing_image");
  EXPECT_EQ(test::show(*reader->next()), "list/4:missing_image") << "a row with too few fields";
  EXPECT_FALSE(reader->next());
}

TEST(ListSource, JsonLinesKeepTheirTypesAndNullIsNoCaption) {
  TempFolder folder;
  folder.write("rows.jsonl",
               "{\"path\": \"0.jpg\", \"text\": \"zero\", \"n\": \"7\", \"key\": \"x\"}\n"
               "{\"path\": \"1.jpg\", \"text\": null, \"key\": 12}\n"
               "{\"path\": \"2.jpg\", \"text\": \"two\", \"key\": \"x\"}\n");
  SourceConfig config = config_of(Type::csv, folder.path("rows.jsonl"));
  config.columns.key = "key";
  config.filters = {{"n", "7"}};
  EXPECT_THAT(rows_of(config), ElementsAre("rows/x=zero", "rows/12:missing_caption", "rows/x#2=two"));
  EXPECT_EQ(first_sample(config).json, R"({"n":"7"})");
}

TEST(ListSource, NumbersOf64BitsAreNumbersToFilters) {
  TempFolder folder;
  folder.write("rows.jsonl",
               "{\"path\": \"0.jpg\", \"text\": \"zero\", \"n\": 18446744073709551615}\n"
               "{\"path\": \"1.jpg\", \"text\": \"one\", \"n\": \"18446744073709551615\"}\n");
  folder.write("rows.csv",
               "path,text,n\n0.jpg,zero,18446744073709551615\n1.jpg,one,018446744073709551615\n"
               "2.jpg,two,18446744073709551614\n");
  SourceConfig config = config_of(Type::csv, folder.path("rows.jsonl"));
  config.filters = {{"n", "18446744073709551615"}};
  EXPECT_THAT(judged_rows_of(config), ElementsAre("rows/0=zero", "rows/1:filtered")) << "a text stays one";
  config.path = {folder.path("rows.csv")};
  EXPECT_THAT(judged_rows_of(config), ElementsAre("rows/0=zero", "rows/1:filtered", "rows/2:filtered"));
}

// As programs write it, and as Python's csv does.
TEST(ListSource, TrueAndFalseAreNoTextToAFilter) {
  TempFolder folder;
  folder.write("a.csv",
               "path,text,ok\n0.jpg,zero,true\n1.jpg,one,True\n2.jpg,two,false\n3.jpg,three,False\n4.jpg,four,yes\n");
  SourceConfig config = config_of(Type::csv, folder.path("a.csv"));
  config.filters = {{"ok", "true"}};
  EXPECT_THAT(judged_rows_of(config),
              ElementsAre("a/0=zero", "a/1=one", "a/2:filtered", "a/3:filtered", "a/4:filtered"));
  config.filters = {{"ok", "false"}};
  EXPECT_THAT(judged_rows_of(config),
              ElementsAre("a/0:filtered", "a/1:filtered", "a/2=two", "a/3=three", "a/4:filtered"));
}

// As in a tar's json.
TEST(ListSource, AFilterHoldsForNoListAndNoMap) {
  TempFolder folder;
  folder.write("rows.jsonl",
               "{\"path\": \"0.jpg\", \"text\": \"zero\", \"tag\": [\"a\"]}\n"
               "{\"path\": \"1.jpg\", \"text\": \"one\", \"tag\": {\"a\": 1}}\n"
               "{\"path\": \"2.jpg\", \"text\": \"two\", \"tag\": \"[a]\"}\n"
               "{\"text\": \"three\", \"tag\": []}\n");
  SourceConfig config = config_of(Type::csv, folder.path("rows.jsonl"));
  config.filters = {{"tag", "!= x"}};
  EXPECT_THAT(judged_rows_of(config),
              ElementsAre("rows/0:filtered", "rows/1:filtered", "rows/2=two", "rows/3:filtered"));
}

// COCO's lists have both: the name of the file and where it is.
TEST(ListSource, AFileNameIsTheLastThatIsTaken) {
  TempFolder folder;
  folder.write("a.csv", "file_name,url,caption\n0.jpg,http://h/0.jpg,zero\n");
  EXPECT_EQ(first_sample(config_of(Type::csv, folder.path("a.csv"))).image_uri, "http://h/0.jpg");
  folder.write("b.csv", "file_name,caption\n0.jpg,zero\n");
  EXPECT_EQ(first_sample(config_of(Type::csv, folder.path("b.csv"))).image_uri, folder.path("0.jpg"));
}

// Of which the folder is given.
TEST(ListSource, ReadsTheMetadataOfHuggingFacesImageFolders) {
  TempFolder folder;
  folder.write("0.jpg", "x");
  folder.write("metadata.jsonl",
               "{\"file_name\": \"0.jpg\", \"url\": \"http://where.it/came/from\", \"text\": \"zero\"}\n");
  const SourceConfig config = config_of(Type::csv, folder.path(""));
  EXPECT_THAT(rows_of(config), ElementsAre("metadata/0=zero"));
  EXPECT_EQ(first_sample(config).image_uri, folder.path("0.jpg"));
}

// A row's number may be another row's key.
TEST(ListSource, IdsAreUniqueWhereKeysAreMissing) {
  TempFolder folder;
  folder.write("rows.csv", "path,text,key\n0.jpg,a,1\n1.jpg,b,\n2.jpg,c,1\n3.jpg,d,\n");
  SourceConfig config = config_of(Type::csv, folder.path("rows.csv"));
  config.columns.key = "key";
  EXPECT_THAT(rows_of(config), ElementsAre("rows/1=a", "rows/1#2=b", "rows/1#3=c", "rows/3=d"));
}

TEST(ListSource, AnObjectIsNoCaption) {
  TempFolder folder;
  folder.write("rows.jsonl",
               "{\"path\": \"0.jpg\", \"text\": [\"a cat\", \"a feline\"]}\n"
               "{\"path\": \"1.jpg\", \"text\": {\"en\": \"a dog\"}}\n"
               "{\"path\": \"2.jpg\", \"text\": \"[a hen] in brackets\"}\n");
  EXPECT_THAT(rows_of(config_of(Type::csv, folder.path("rows.jsonl"))),
              ElementsAre("rows/0=a cat|a feline", "rows/1:missing_caption", "rows/2=[a hen] in brackets"));
}

// Half of the data under another name must not be lost as one bad row.
TEST(ListSource, AFileWithoutTheColumnLosesEachOfItsRows) {
  TempFolder folder;
  folder.write("a.csv", "path,text\n0.jpg,zero\n1.jpg,one\n");
  folder.write("b.csv", "path,prompt\n0.jpg,zero\n1.jpg,one\n2.jpg,two\n");
  folder.write("c.csv", "where,text\n0.jpg,zero\n");
  const SourceConfig config = config_of(Type::csv, folder.path("{a,b,c}.csv"));
  const Manifest manifest = manifest_of(config);
  const auto source = make_source(config, manifest, 64);
  EXPECT_THAT(test::rows_of(*source, {0, 0, 1}), ElementsAre("a/0=zero", "a/1=one"));
  EXPECT_THAT(test::rows_of(*source, {1, 0, 2}), ElementsAre("b/0:missing_caption", "b/2:missing_caption"));
  EXPECT_THAT(test::rows_of(*source, {1, 1, 2}), ElementsAre("b/1:missing_caption"));
  EXPECT_THAT(test::rows_of(*source, {1, 0, 2}, 1), ElementsAre("b/2:missing_caption"));
  EXPECT_THAT(test::rows_of(*source, {2, 0, 1}), ElementsAre("c/0:missing_image"));
}

TEST(ListSource, ADamagedRowIsAloneAndSaysWhy) {
  TempFolder folder;
  folder.write("a.csv", "path,caption\n0.jpg,zero\n1.jpg\n2.jpg,\"two\n3.jpg,three\n");
  folder.write("b.jsonl",
               "{\"path\": \"0.jpg\"\n"
               "{\"path\": \"1.jpg\"}\n"
               "{\"path\": \"2.jpg\", \"caption\": \"two\", \"punsafe\": NaN}\n"
               "{\"path\": \"3.jpg\", \"caption\": \"three\", \"punsafe\": 0.1}\n");
  SourceConfig config = config_of(Type::csv, folder.path(""));
  const Manifest manifest = manifest_of(config);
  config.filters = {{"punsafe", "<0.5"}};
  const auto source = make_source(config, manifest, 64);
  EXPECT_THAT(rows_of(*source, {0, 0, 1}), ElementsAre("a/0=zero", "a/1:missing_image", "a/2=\"two", "a/3=three"));
  EXPECT_THAT(rows_of(*source, {1, 0, 1}), ElementsAre("b/0:bad_json", "b/1:missing_caption", "b/2=two", "b/3=three"));
  const auto detail_of = [&](std::uint32_t archive, std::uint64_t row) {
    return std::get<Rejected>(*source->open({archive, 0, 1}, row)->next()).detail;
  };
  EXPECT_EQ(detail_of(0, 1), folder.path("a.csv:3: 1 fields instead of 2"));
  EXPECT_THAT(detail_of(1, 0), HasSubstr("b.jsonl:1 is not valid JSON"));
  const auto reader = source->open({1, 0, 1}, 3);
  EXPECT_EQ(std::get<RawSample>(*reader->next()).json, R"({"punsafe":0.1})") << "which the first row does not have";
}

// A file that ends too early is read up to there, whether or not its keys are counted first.
TEST(ListSource, ABreakCostsNothingThatComesBeforeIt) {
  TempFolder folder;
  std::string csv = "path,caption,id\n", jsonl;
  for (int row = 0; row < 4000; ++row) {
    std::string text;  // which hardly compresses
    for (std::uint64_t word = 1; word <= 16; ++word)
      text += fmt::format("{:x}", (16u * row + word) * 0x9E3779B97F4A7C15u);
    csv += fmt::format("{}.jpg,{},k{}\n", row, text, row % 1000);
    if (row < 900) jsonl += fmt::format("{{\"path\": \"{}.jpg\", \"caption\": \"{}\", \"id\": {}}}\n", row, text, row);
  }
  const auto cut = [&](const std::string& name, const std::string& text) {
    folder.write(name, text);
    ASSERT_EQ(std::system(("gzip " + folder.path(name)).c_str()), 0);
    const auto packed = folder.path(name + ".gz");
    fs::resize_file(packed, fs::file_size(packed) * 9 / 10);
  };
  cut("a.csv", csv);
  cut("b.jsonl", jsonl);
  for (const char* key : {"", "id"}) {
    SourceConfig config = config_of(Type::csv, folder.path(""));
    if (*key) config.columns.key = key;
    const Manifest manifest = manifest_of(config);
    const auto source = make_source(config, manifest, 64);
    for (const std::uint32_t archive : {0u, 1u}) {
      const auto rows = rows_of(*source, {archive, 0, 1});
      EXPECT_GT(rows.size(), archive == 0 ? 3300u : 500u) << key;  // but for the last piece that is unpacked
      EXPECT_THAT(rows.back(), HasSubstr("archive_error")) << key;
      EXPECT_EQ(std::ranges::count_if(rows, [](const auto& row) { return row.ends_with(":archive_error"); }), 1) << key;
    }
  }
}

// Spark writes a list without a byte for a part without rows.
TEST(ListSource, AListWithoutRowsHasNoneAndNoColumns) {
  TempFolder folder;
  for (const char* name : {"a.csv", "b.jsonl"}) folder.write(name, "");
  folder.write("c.csv", "path,caption\n0.jpg,zero\n");
  SourceConfig config = config_of(Type::csv, folder.path(""));
  config.columns.key = "path";
  const Manifest manifest = manifest_of(config);
  const auto source = make_source(config, manifest, 64);
  EXPECT_THAT(rows_of(*source, {0, 0, 1}), ElementsAre());
  EXPECT_THAT(rows_of(*source, {1, 0, 1}), ElementsAre());
  EXPECT_THAT(rows_of(*source, {2, 0, 1}), ElementsAre("c/0.jpg=zero"));
}

TEST(ListSource, AListThatLacksRowsThatWereReadIsABadRow) {
  TempFolder folder;
  for (const char* name : {"a.csv", "b.jsonl", "c.csv"}) folder.write(name, "");
  folder.write("a.csv", "path,caption\n0.jpg,zero\n1.jpg,one\n");
  folder.write("c.csv", "place,caption\n0.jpg,zero\n");
  const SourceConfig config = config_of(Type::csv, folder.path(""));
  const Manifest manifest = manifest_of(config);
  const auto source = make_source(config, manifest, 64);
  EXPECT_THAT(rows_of(*source, {0, 0, 1}, 2), ElementsAre());
  EXPECT_THAT(rows_of(*source, {0, 0, 1}, 3), ElementsAre("a:archive_error"));
  EXPECT_THAT(rows_of(*source, {1, 0, 1}), ElementsAre());
  EXPECT_THAT(rows_of(*source, {1, 0, 1}, 1), ElementsAre("b:archive_error")) << "of which nothing is left";
  EXPECT_THAT(rows_of(*source, {1, 1, 2}, 1), ElementsAre("b:archive_error"));
  EXPECT_THAT(rows_of(*source, {2, 0, 1}), ElementsAre("c/0:missing_image"));
  EXPECT_THAT(rows_of(*source, {2, 0, 1}, 1), ElementsAre());
  EXPECT_THAT(rows_of(*source, {2, 0, 1}, 2), ElementsAre("c:archive_error")) << "which lacks a column";
}

TEST(ListSource, LanesResumeAndLimit) {
  TempFolder folder;
  std::string text = "url\tcaption\n";
  for (int i = 0; i < 23; ++i) text += fmt::format("{}.jpg\tcaption {}\n", i, i);
  folder.write("a.tsv", text);
  SourceConfig config = config_of(Type::csv, folder.path(""));
  const std::vector<std::string> whole = rows_of(config);
  ASSERT_EQ(whole.size(), 23u);
  const Manifest manifest = manifest_of(config);
  const auto source = make_source(config, manifest, 64);
  EXPECT_EQ(rows_of(*source, {0, 1, 4}, 5), std::vector<std::string>({whole[21]}));
  config.limit = 9;
  const Manifest limited = manifest_of(config);
  EXPECT_EQ(rows_of(*make_source(config, limited, 64), {0, 0, 2}).size(), 5u);
}

TEST(ListSource, ImagesAreLoadedAfterTheFilters) {
  TempFolder folder;
  folder.write("there.jpg", "<html>");
  folder.write("empty.jpg", "");
  const Filter filter(Expressions{{"w", "1"}});
  TransformPipeline transforms;
  transforms.filter = &filter;
  const auto outcome = [&](const std::string& uri, const std::string& json) {
    RawSample sample;
    sample.image_uri = uri;
    sample.json = json;
    if (const auto refusal = judge_metadata(sample, transforms)) return refusal->first;
    TransformSeconds spent;
    return std::get<Rejected>(transform_sample(std::move(sample), transforms, spent)).reason;
  };
  EXPECT_EQ(outcome(folder.path("there.jpg"), R"({"w":1})"), RejectReason::not_an_image);
  EXPECT_EQ(outcome(folder.path("empty.jpg"), R"({"w":1})"), RejectReason::missing_image);
  EXPECT_EQ(outcome(folder.path("nowhere.jpg"), R"({"w":1})"), RejectReason::missing_image);
  EXPECT_EQ(outcome(folder.path("nowhere.jpg"), R"({"w":2})"), RejectReason::filtered);
  EXPECT_EQ(outcome("pipe:touch " + folder.path("run"), R"({"w":1})"), RejectReason::missing_image);
  EXPECT_FALSE(fs::exists(folder.path("run"))) << "a list must not run commands";
  EXPECT_EQ(outcome("/dev/zero", R"({"w":1})"), RejectReason::missing_image);
}

TEST(Sources, KindsThatDoNotGoTogetherAreRefused) {
  TempFolder folder;
  folder.write("a.csv", "url,caption\n");
  folder.write_tar("a.tar", {test::sample("0", "J", "")});
  for (const auto& [type, path] : std::vector<std::pair<Type, std::string>>{{Type::webdataset, folder.path("a.csv")},
                                                                            {Type::csv, folder.path("a.tar")},
                                                                            {Type::parquet, folder.path("a.csv")},
                                                                            {Type::csv, "http://h/list.csv"},
                                                                            {Type::parquet, "https://h/a.parquet"}}) {
    EXPECT_EQ(error_of([&] { manifest_of(config_of(type, path)); }).exit(), Exit::usage) << path;
  }
}

// ---- classes -------------------------------------------------------------------------------------------------------

SourceConfig class_config(const TempFolder& folder, const std::string& path, const std::string& prompts) {
  folder.write("prompts.json", prompts);
  SourceConfig config = config_of(Type::class_labels, path);
  config.idx_to_prompt = folder.path("prompts.json");
  return config;
}

TEST(ClassSource, TarsWithCls) {
  TempFolder folder;
  folder.write_tar("a.tar", {{.key = "0", .fields = {{"jpg", "J"}, {"cls", "0"}, {"txt", "not this"}}},
                             {.key = "1", .fields = {{"jpg", "J"}, {"cls", " 2\n"}}},
                             {.key = "2", .fields = {{"jpg", "J"}, {"cls", "7"}}},
                             {.key = "3", .fields = {{"jpg", "J"}, {"txt", "no class"}}},
                             {.key = "4", .fields = {{"cls", "0"}}},
                             {.key = "5", .fields = {{"jpg", "J"}, {"cls", "1"}}}});
  const std::vector<std::string> expected = {"a/0=a cat",           "a/1=a dog",         "a/2:missing_caption",
                                             "a/3:missing_caption", "a/4:missing_image", "a/5:missing_caption"};
  EXPECT_EQ(rows_of(class_config(folder, folder.path("a.tar"), R"({"0": "a cat", "2": "a dog"})")), expected);
  EXPECT_EQ(rows_of(class_config(folder, folder.path("a.tar"), R"(["a cat", null, "a dog"])")), expected);
}

TEST(ClassSource, ListsAndParquetWithAColumn) {
  TempFolder folder;
  folder.write("a.csv", "path,label\n0.jpg,1\n1.jpg,n01440764\n2.jpg,\n3.jpg,2.0\n4.jpg,1.0\n");
  SourceConfig config = class_config(folder, folder.path("a.csv"), R"({"1": "a hen", "n01440764": "a tench"})");
  EXPECT_THAT(rows_of(config),
              ElementsAre("a/0=a hen", "a/1=a tench", "a/2:missing_caption", "a/3:missing_caption", "a/4=a hen"));
  config = class_config(folder, golden + "hub.parquet", R"(["zero", "one", "two", "three"])");
  config.columns.cls = "label";
  EXPECT_THAT(std::vector(rows_of(config)), testing::Contains("hub/7=three"));
  config.columns.cls = "class";
  EXPECT_EQ(error_of([&] { manifest_of(config); }).exit(), Exit::usage);
}

TEST(ClassSource, ADirectoryIsItsTarsElseItsListsElseItsParquet) {
  TempFolder folder;
  fs::create_directory(folder.path("set"));
  const auto first_row = [&] {
    return rows_of(class_config(folder, folder.path("set"), R"({"1": "a hen", "3": "three"})")).front();
  };
  ParquetWriter writer(folder.path("set/p.parquet"), {{"jpg", ParquetField::Type::bytes}, {"label"}});
  writer.write({std::string("J"), std::string("3")});
  writer.commit();
  EXPECT_EQ(first_row(), "p/0=three");
  folder.write("set/l.csv", "path,label\n0.jpg,1\n");
  EXPECT_EQ(first_row(), "l/0=a hen");
  folder.write_tar("set/t.tar", {{.key = "0", .fields = {{"jpg", "J"}, {"cls", "1"}}}});
  EXPECT_EQ(first_row(), "t/0=a hen");
}

TEST(ClassSource, PromptsAreRequiredAndMustBeTexts) {
  TempFolder folder;
  folder.write_tar("a.tar", {test::sample("0", "J", "")});
  SourceConfig config = config_of(Type::class_labels, folder.path("a.tar"));
  const Manifest manifest = manifest_of(config);
  EXPECT_EQ(error_of([&] { make_source(config, manifest, 64); }).exit(), Exit::usage);
  for (const char* prompts : {"7", "{\"0\": 7}", "{", "[[\"n01440764\", \"tench\"]]"}) {
    config = class_config(folder, folder.path("a.tar"), prompts);
    EXPECT_EQ(error_of([&] { make_source(config, manifest, 64); }).exit(), Exit::io) << prompts;
  }
}

}  // namespace
}  // namespace millrace
