/* Stands in for the file that torch's build generates and its CPU wheels
 * leave out.  On the include path after torch's own. */
#pragma once
