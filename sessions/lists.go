package sessions

import "slices"

// insertString adds s to a sorted list, once. It never changes the list's memory, which views share.
func insertString(list []string, s string) []string {
	at, found := slices.BinarySearch(list, s)
	if found {
		return list
	}
	return slices.Insert(slices.Clone(list), at, s)
}

// removeString takes s out of a sorted list, without changing the list's memory.
func removeString(list []string, s string) []string {
	at, found := slices.BinarySearch(list, s)
	if !found {
		return list
	}
	return slices.Delete(slices.Clone(list), at, at+1)
}
