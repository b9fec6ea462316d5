/* Which files the program runs code of: they tell where its kernels come from. */
#ifndef OPSCOPE_MEMORY_MAPS_H
#define OPSCOPE_MEMORY_MAPS_H

/* Put those mapped now, besides what earlier calls put. The caller holds the file's lock. */
void memory_maps_put(void);

#endif
