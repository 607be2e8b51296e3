/* Regions by key.
 *
 * A key is generation << 32 | index. An index is used again, a key never is: whoever holds a stale key gets an error and
 * never another region's memory. A pin keeps a region while its bytes are copied: looking up is lock-free, and removing
 * waits for the pins, so memory is never touched once its release has returned. */

#include "mailbox.h"

#include <sched.h>
#include <stdlib.h>

#define MOST_REGIONS 65536u
#define INDEX UINT64_C(0xffffffff)

bool regions_init(struct regions *regions)
{
    /* 3 MiB of address space; the system gives memory to the entries that are used. */
    regions->entries = calloc(MOST_REGIONS, sizeof *regions->entries);
    regions->free = calloc(MOST_REGIONS, sizeof *regions->free);
    regions->frees = regions->used = 0;
    pthread_mutex_init(&regions->lock, NULL);
    return regions->entries != NULL && regions->free != NULL;
}

void regions_end(struct regions *regions)
{
    pthread_mutex_destroy(&regions->lock);
    free(regions->entries);
    free(regions->free);
}

uint64_t region_add(struct regions *regions, unsigned char *address, uint64_t bytes, uint64_t remote, uint32_t owner)
{
    pthread_mutex_lock(&regions->lock);
    uint32_t index = MOST_REGIONS;
    if (regions->frees > 0)
        index = regions->free[--regions->frees];
    else if (regions->used < MOST_REGIONS)
        index = regions->used++;
    pthread_mutex_unlock(&regions->lock);
    if (index == MOST_REGIONS)
        return 0;
    struct region *region = &regions->entries[index];
    region->address = address;
    region->bytes = bytes;
    region->remote = remote;
    region->owner = owner;
    /* The index is ours alone and has no pins: only its generation changes, to an odd one. */
    uint64_t state = atomic_load_explicit(&region->state, memory_order_relaxed) + (UINT64_C(1) << 32);
    atomic_store_explicit(&region->state, state, memory_order_release);
    return state | index;
}

void region_remove(struct regions *regions, uint64_t key)
{
    struct region *region = &regions->entries[key & INDEX];
    atomic_fetch_add(&region->state, UINT64_C(1) << 32);
    /* A pin lasts as long as the copy of one fragment. */
    while ((atomic_load_explicit(&region->state, memory_order_acquire) & INDEX) != 0)
        sched_yield();
    pthread_mutex_lock(&regions->lock);
    regions->free[regions->frees++] = (uint32_t)(key & INDEX);
    pthread_mutex_unlock(&regions->lock);
}

enum found region_pin(struct regions *regions, uint64_t key, uint64_t offset, uint64_t bytes, struct region **found)
{
    /* Generations begin at 1 and are odd while a region lives: key 0 and other nonsense match none. */
    if ((key & INDEX) >= MOST_REGIONS || (key >> 32 & 1) == 0)
        return STALE;
    struct region *region = &regions->entries[key & INDEX];
    uint64_t state = atomic_load_explicit(&region->state, memory_order_relaxed);
    do {
        if (state >> 32 != key >> 32)
            return STALE;
    } while (!atomic_compare_exchange_weak_explicit(&region->state, &state, state + 1, memory_order_acquire,
                                                    memory_order_relaxed));
    if (offset > region->bytes || region->bytes - offset < bytes) {
        region_unpin(region);
        return OUTSIDE;
    }
    *found = region;
    return FOUND;
}

void region_unpin(struct region *region)
{
    atomic_fetch_sub_explicit(&region->state, 1, memory_order_release);
}
