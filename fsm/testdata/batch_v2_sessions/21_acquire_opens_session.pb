€¤ÊN€€ÌŸÂğÖë"$
"
defaultreq-7:0(8Js4Rg4Zh7