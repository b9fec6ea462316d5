/* The devices of this process, asked of the CUDA driver that is already loaded.
 *
 * Not to be called with the file's lock held: what is asked of the driver may be recorded itself. */
#ifndef OPSCOPE_DEVICES_H
#define OPSCOPE_DEVICES_H

#include "record_format.h"

/* Fill the records, and the version of CUDA that the driver serves. Returns how many; -1 if the driver does not answer
 * (yet). */
int devices_read(struct device_record *records, int most, uint32_t *driver_version);

#endif
