module forebay.local/cluster/pause

go 1.24.0
