#include "millrace/parcels/producer_report.h"

namespace millrace {

void ProducerReport::add(const ProducerReport& other, double factor) {
  images += factor * other.images;
  seconds += factor * other.seconds;
  reader_seconds += factor * other.reader_seconds;
  readers.add(other.readers, factor);
  encode_seconds += factor * other.encode_seconds;
  encode_wait_seconds += factor * other.encode_wait_seconds;
  send_seconds += factor * other.send_seconds;
  send_wait_seconds += factor * other.send_wait_seconds;
  gpu.add(other.gpu, factor);
}

}  // namespace millrace
