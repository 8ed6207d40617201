/* tissues.c - the table of regions and tissues. */
#include "tissues.h"

#include <string.h>

/* The tissues of regions 0 to 606, which are in the left half; regions of the right half have numbers 1000
 * higher. c: cortex, w: white matter, s: subcortical grey matter and brain stem, b: cerebellum, f:
 * cerebrospinal fluid. */
static const char regions[] =
    ".cwccccccccwsswwwsswsswwsssswwwwssswwcsswwsswcswsswfsscwwwcwssscwcwwwccwwffwwwswswswwwcwwwssswwsswsw"
    "ssswswwsfswcwwwsssssswsswfswwwswswwsssssswssssscswwwscswswssswssssscwwsswssswsswcwswwbsswsssswfwcwss"
    "wfsswsswwswsscccccsbcwcsbbbccccbsbbbbwbsbbbsbbbbbbccbcwssswwsfssssssswsswsswssssswwscswssswwswbbbwss"
    "wwwsswffcbsswcswssssssssssssssswwwssw.....c..................s.ssswwsswfwws.sswwwwwsssssscsswcswssss"
    "swssbwsssswwswsssssssswsswwsswscssswwssssswsssswcsccccsccccsssscccssssscswcwsssssssssswbwsssssswssss"
    "swfsccssswwssb.s.b...s..............s..........................................w..fssss..s....s....."
    ".....ss";

int tissue_of(int region)
{
    static const char letters[] = ".cwsbf"; /* in the order of the enumeration */
    if (region >= 1000) region -= 1000;
    if (region < 0 || region >= (int)sizeof(regions) - 1) return BACKGROUND;
    return (int)(strchr(letters, regions[region]) - letters);
}
