package segment

// Reserve sets the pages of a file aside.
var Reserve = reserve
